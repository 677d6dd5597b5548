//! The event queue: a calendar queue of small events.
//!
//! Time is divided into buckets, 1,024 per epoch. An event of the current epoch goes into its bucket, a later one into
//! the list of its epoch, and the few in the far future into a heap; a bucket is sorted when it becomes current. The
//! cost of an event is therefore independent of the number of queued events. Events of the same time keep their order
//! of insertion, which makes runs repeatable. Rejected: a heap of all events, with which most of the time of a
//! simulation would be cache misses.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Number of buckets in an epoch, as a power of two.
const BUCKET_BITS: u32 = 10;
const BUCKETS: usize = 1 << BUCKET_BITS;
/// Number of the following epochs that have their own lists.
const NEAR_EPOCHS: u64 = 4096;

/// A queued event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedEvent {
    /// Time of the event, in nanoseconds.
    pub(crate) at: u64,
    /// Payload of the event.
    pub(crate) payload: u64,
}

/// Events ordered by time.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Duration of a bucket as a power of two: `1 << shift` nanoseconds.
    shift: u32,
    /// Number of the current bucket counted from time 0, and its events in reverse order.
    bucket_number: u64,
    current: Vec<QueuedEvent>,
    /// Buckets of the present epoch. A bit for each bucket tells whether it is non-empty.
    buckets: Vec<Vec<QueuedEvent>>,
    filled: [u64; BUCKETS / 64],
    /// Lists of events of the following epochs.
    near_epochs: VecDeque<Vec<QueuedEvent>>,
    far_events: BinaryHeap<Reverse<(u64, u64, u64)>>,
    /// Number of events ever pushed to `far_events`.
    far_sequence: u64,
    /// Empty lists for reuse.
    free_lists: Vec<Vec<QueuedEvent>>,
    len: usize,
}

impl EventQueue {
    /// Creates an empty queue for about this many events per second.
    pub(crate) fn new(events_per_second: f64) -> Self {
        // About eight events per bucket: few enough to sort at once, enough to pay for the advance.
        let width = (8e9 / events_per_second.max(1.0)).clamp(64.0, 1e9) as u64;
        Self {
            shift: width.ilog2(),
            bucket_number: 0,
            current: Vec::new(),
            buckets: vec![Vec::new(); BUCKETS],
            filled: [0; BUCKETS / 64],
            near_epochs: VecDeque::new(),
            far_events: BinaryHeap::new(),
            far_sequence: 0,
            free_lists: Vec::new(),
            len: 0,
        }
    }

    /// Adds an event. An event in the past becomes the next one.
    #[inline]
    pub(crate) fn push(&mut self, at: u64, payload: u64) {
        self.len += 1;
        let bucket_number = at >> self.shift;
        if bucket_number <= self.bucket_number {
            let position = self.current.partition_point(|event| event.at > at);
            self.current.insert(position, QueuedEvent { at, payload });
        } else if bucket_number >> BUCKET_BITS == self.bucket_number >> BUCKET_BITS {
            self.put(bucket_number, QueuedEvent { at, payload });
        } else {
            self.push_later(at, payload);
        }
    }

    /// Takes the next event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<QueuedEvent> {
        loop {
            if let Some(event) = self.current.pop() {
                self.len -= 1;
                return Some(event);
            }
            if self.len == 0 {
                return None;
            }
            self.advance();
        }
    }

    #[inline]
    fn put(&mut self, bucket_number: u64, event: QueuedEvent) {
        let bucket = bucket_number as usize % BUCKETS;
        self.buckets[bucket].push(event);
        self.filled[bucket / 64] |= 1 << (bucket % 64);
    }

    fn push_later(&mut self, at: u64, payload: u64) {
        let ahead = (at >> self.shift >> BUCKET_BITS) - (self.bucket_number >> BUCKET_BITS) - 1;
        if ahead >= NEAR_EPOCHS {
            self.far_sequence += 1;
            self.far_events.push(Reverse((at, self.far_sequence, payload)));
            return;
        }
        while self.near_epochs.len() <= ahead as usize {
            let list = self.free_lists.pop().unwrap_or_default();
            self.near_epochs.push_back(list);
        }
        self.near_epochs[ahead as usize].push(QueuedEvent { at, payload });
    }

    /// Advances to the next non-empty bucket, or to the next epoch.
    fn advance(&mut self) {
        let Some(bucket) = self.next_filled() else { return self.next_epoch() };
        self.filled[bucket / 64] &= !(1 << (bucket % 64));
        self.bucket_number = self.bucket_number >> BUCKET_BITS << BUCKET_BITS | bucket as u64;
        std::mem::swap(&mut self.current, &mut self.buckets[bucket]);
        // Reversed first, so that among equal times the stable sort leaves the first inserted at the end.
        self.current.reverse();
        self.current.sort_by_key(|event| Reverse(event.at));
    }

    fn next_filled(&self) -> Option<usize> {
        let from = self.bucket_number as usize % BUCKETS;
        let mut word = from / 64;
        let mut bits = self.filled[word] & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.filled.get(word)?;
        }
    }

    fn next_epoch(&mut self) {
        let epoch = (self.bucket_number >> BUCKET_BITS) + 1;
        self.bucket_number = epoch << BUCKET_BITS;
        if let Some(mut list) = self.near_epochs.pop_front() {
            for event in list.drain(..) {
                self.put(event.at >> self.shift, event);
            }
            self.free_lists.push(list);
        }
        while let Some(&Reverse((at, _, payload))) = self.far_events.peek()
            // Moves all events that now fit into `near_epochs`: later insertions must come after them.
            && at >> self.shift >> BUCKET_BITS <= epoch + NEAR_EPOCHS
        {
            self.far_events.pop();
            match at >> self.shift >> BUCKET_BITS == epoch {
                true => self.put(at >> self.shift, QueuedEvent { at, payload }),
                false => self.push_later(at, payload),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::arith::Generator;

    use super::*;

    #[test]
    fn far_event_precedes_later_insertions_of_same_time() {
        let mut queue = EventQueue::new(1e6);
        let epoch = 1 << queue.shift << BUCKET_BITS;
        let at = (NEAR_EPOCHS + 1) * epoch;
        queue.push(at, 1);
        queue.push(epoch, 0);
        assert_eq!(queue.pop(), Some(QueuedEvent { at: epoch, payload: 0 }));
        queue.push(at, 2);
        assert_eq!([queue.pop(), queue.pop()].map(|event| event.unwrap().payload), [1, 2]);
    }

    #[test]
    fn events_are_ordered_by_time_and_then_by_insertion() {
        for rate in [1e2, 1e6] {
            let mut random = Generator::new(5);
            let mut queue = EventQueue::new(rate);
            let mut expected: Vec<(u64, u64)> = Vec::new();
            let (mut now, mut number) = (0, 0);
            let mut got = Vec::new();
            for _ in 0..20_000 {
                for _ in 0..random.below(3) {
                    let ahead = random.next() >> (24 + random.below(40));
                    let at = now + ahead / 1000 * 1000;
                    queue.push(at, number);
                    expected.push((at, number));
                    number += 1;
                }
                if let Some(event) = queue.pop() {
                    assert!(event.at >= now);
                    now = event.at;
                    got.push((event.at, event.payload));
                }
            }
            while let Some(event) = queue.pop() {
                got.push((event.at, event.payload));
            }
            expected.sort_unstable();
            assert_eq!(got, expected);
        }
    }
}
