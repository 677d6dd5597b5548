//! What happens next: a calendar queue of small events.
//!
//! Time is cut into buckets, 1,024 of them into an epoch. An event of the present epoch goes to its bucket, a later one
//! to the list of its epoch, and the few that are very late into a heap; a bucket is sorted when its turn comes. So an
//! event costs the same however many wait. Events of one moment come in the order in which they were put in, which makes
//! a run repeatable. A heap of all events was rejected: it spends most of the time of a simulation in missing the cache.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Buckets of an epoch, as a power of two.
const BITS: u32 = 10;
const BUCKETS: usize = 1 << BITS;
/// Epochs that have a list of their own.
const NEAR: u64 = 4096;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// When, in nanoseconds.
    pub(crate) at: u64,
    /// What.
    pub(crate) what: u64,
}

/// Events by time.
#[derive(Debug)]
pub(crate) struct Queue {
    /// A bucket is `1 << shift` nanoseconds.
    shift: u32,
    /// The bucket whose turn it is, counted from time 0, and its events, the next one last.
    slot: u64,
    current: Vec<Event>,
    /// Of the present epoch, with a bit for each that is not empty.
    buckets: Vec<Vec<Event>>,
    filled: [u64; BUCKETS / 64],
    /// Of the epochs that follow.
    near: VecDeque<Vec<Event>>,
    far: BinaryHeap<Reverse<(u64, u64, u64)>>,
    /// How many events ever went to `far`.
    sent_far: u64,
    /// Lists to use again.
    spare: Vec<Vec<Event>>,
    len: usize,
}

impl Queue {
    /// An empty queue for about this many events a second.
    pub(crate) fn new(events_per_second: f64) -> Self {
        // Some eight events a bucket: few enough to sort at once, enough to pay for the turn.
        let width = (8e9 / events_per_second.max(1.0)).clamp(64.0, 1e9) as u64;
        Self {
            shift: width.ilog2(),
            slot: 0,
            current: Vec::new(),
            buckets: vec![Vec::new(); BUCKETS],
            filled: [0; BUCKETS / 64],
            near: VecDeque::new(),
            far: BinaryHeap::new(),
            sent_far: 0,
            spare: Vec::new(),
            len: 0,
        }
    }

    /// Adds an event; one of the past happens next.
    #[inline]
    pub(crate) fn push(&mut self, at: u64, what: u64) {
        self.len += 1;
        let slot = at >> self.shift;
        if slot <= self.slot {
            let place = self.current.partition_point(|event| event.at > at);
            self.current.insert(place, Event { at, what });
        } else if slot >> BITS == self.slot >> BITS {
            self.put(slot, Event { at, what });
        } else {
            self.push_later(at, what);
        }
    }

    /// Takes the next event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.current.pop() {
                self.len -= 1;
                return Some(event);
            }
            if self.len == 0 {
                return None;
            }
            self.turn();
        }
    }

    #[inline]
    fn put(&mut self, slot: u64, event: Event) {
        let bucket = slot as usize % BUCKETS;
        self.buckets[bucket].push(event);
        self.filled[bucket / 64] |= 1 << (bucket % 64);
    }

    fn push_later(&mut self, at: u64, what: u64) {
        let ahead = (at >> self.shift >> BITS) - (self.slot >> BITS) - 1;
        if ahead >= NEAR {
            self.sent_far += 1;
            self.far.push(Reverse((at, self.sent_far, what)));
            return;
        }
        while self.near.len() <= ahead as usize {
            let list = self.spare.pop().unwrap_or_default();
            self.near.push_back(list);
        }
        self.near[ahead as usize].push(Event { at, what });
    }

    /// Goes on to the next bucket that holds something, or to the next epoch.
    fn turn(&mut self) {
        let Some(bucket) = self.next_filled() else { return self.next_epoch() };
        self.filled[bucket / 64] &= !(1 << (bucket % 64));
        self.slot = self.slot >> BITS << BITS | bucket as u64;
        std::mem::swap(&mut self.current, &mut self.buckets[bucket]);
        // Turned round first, so that the sort, which keeps the order of equals, leaves the first put in at the end.
        self.current.reverse();
        self.current.sort_by_key(|event| Reverse(event.at));
    }

    fn next_filled(&self) -> Option<usize> {
        let from = self.slot as usize % BUCKETS;
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
        let epoch = (self.slot >> BITS) + 1;
        self.slot = epoch << BITS;
        if let Some(mut list) = self.near.pop_front() {
            for event in list.drain(..) {
                self.put(event.at >> self.shift, event);
            }
            self.spare.push(list);
        }
        while let Some(&Reverse((at, _, what))) = self.far.peek()
            // All that could now be put in near: what is put in from now on comes after it.
            && at >> self.shift >> BITS <= epoch + NEAR
        {
            self.far.pop();
            match at >> self.shift >> BITS == epoch {
                true => self.put(at >> self.shift, Event { at, what }),
                false => self.push_later(at, what),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::arith::Generator;

    use super::*;

    #[test]
    fn what_was_put_in_far_ahead_comes_before_what_joins_it_at_the_same_moment() {
        let mut queue = Queue::new(1e6);
        let epoch = 1 << queue.shift << BITS;
        let at = (NEAR + 1) * epoch;
        queue.push(at, 1);
        queue.push(epoch, 0);
        assert_eq!(queue.pop(), Some(Event { at: epoch, what: 0 }));
        queue.push(at, 2);
        assert_eq!([queue.pop(), queue.pop()].map(|event| event.unwrap().what), [1, 2]);
    }

    #[test]
    fn events_come_by_time_and_of_one_moment_in_the_order_put_in() {
        for rate in [1e2, 1e6] {
            let mut random = Generator::new(5);
            let mut queue = Queue::new(rate);
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
                    got.push((event.at, event.what));
                }
            }
            while let Some(event) = queue.pop() {
                got.push((event.at, event.what));
            }
            expected.sort_unstable();
            assert_eq!(got, expected);
        }
    }
}
