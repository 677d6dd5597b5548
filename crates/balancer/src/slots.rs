use std::sync::{Mutex, OnceLock};

use crate::{Outcome, Slot, book::Book};

/// Slots of the first segment; each further one doubles what there is.
const FIRST: usize = 32;
/// Segments in all, enough for 2^31 slots and more.
const SEGMENTS: usize = 27;

/// The slots of one service by index, shared by all its snapshots.
///
/// It only ever grows, and a slot never moves, so readers need neither a lock nor `unsafe`. An instance keeps its index
/// from snapshot to snapshot (see `assign`, in the book): a call that began on one may end on another.
#[derive(Debug, Default)]
pub struct Slots {
    segments: [OnceLock<Box<[Slot]>>; SEGMENTS],
    pub(crate) book: Mutex<Book>,
}

impl Slots {
    /// The slot at `index`, or `None` when nobody was given that index yet.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Slot> {
        let (segment, offset) = place(index);
        self.segments.get(segment)?.get()?.get(offset)
    }

    /// Calls begun at `index` and not finished.
    #[inline]
    pub fn outstanding(&self, index: u32) -> u32 {
        self.get(index).map_or(0, Slot::outstanding)
    }

    /// Counts a call that begins at `index`.
    #[inline]
    pub fn begin(&self, index: u32) {
        if let Some(slot) = self.get(index) {
            slot.begin();
        }
    }

    /// Counts a call that ends at `index` and learns from its outcome; `now` as in every pick.
    #[inline]
    pub fn finish(&self, index: u32, outcome: Outcome, now: u64) {
        if let Some(slot) = self.get(index) {
            slot.finish(outcome, now);
        }
    }

    /// The slot at `index`, made if need be.
    pub(crate) fn ensure(&self, index: u32) -> &Slot {
        let (segment, offset) = place(index);
        let slots =
            self.segments[segment].get_or_init(|| (0..FIRST << segment).map(|_| Slot::default()).collect());
        &slots[offset]
    }
}

/// Segment `s` holds `FIRST << s` slots and starts at index `FIRST * (2^s - 1)`.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let shifted = index as usize + FIRST;
    let segment = (shifted.ilog2() - FIRST.ilog2()) as usize;
    (segment, shifted - (FIRST << segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_place() {
        let mut expected = (0, 0);
        for index in 0..10_000 {
            assert_eq!(place(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(place(i32::MAX as u32).0 < SEGMENTS);
    }

    #[test]
    fn an_index_that_nobody_has_counts_nothing() {
        let slots = Slots::default();
        slots.begin(7);
        slots.finish(7, Outcome::Ok, 0);
        slots.begin(u32::MAX);
        assert_eq!((slots.outstanding(7), slots.outstanding(u32::MAX)), (0, 0));
    }
}
