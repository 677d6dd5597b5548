use std::sync::{
    Mutex, OnceLock,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::{LoadReport, Outcome, Reported, book::Book, penalty, report::Place};

/// Slots of the first segment; each further one doubles what there is.
const FIRST: usize = 32;
/// Segments after the first, enough for 2^31 slots and more.
const FURTHER: usize = 26;

/// What this client knows of the endpoints of one service by its own calls and their answers: one slot an index, shared
/// by all snapshots.
///
/// It only ever grows, and a slot never moves, so readers need neither a lock nor `unsafe`. An instance keeps its index
/// from snapshot to snapshot ([`assign`](Self::assign)): a call that began on one may end on another.
///
/// A program calls many services, and most of the time of a pick is memory that is far away. So the counts of a usual
/// subset lie here and in two cache lines, and failures, which are rare, lie elsewhere. Padding each count to a line of
/// its own was rejected: what it saves where many cores hit one service, every call to the others pays.
///
/// Counts are relaxed atomics: each is right by itself, and a pick that reads one a moment late is as good a guess.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Slots {
    /// How many slots have failures; while it is 0, nobody looks at `troubles`.
    troubled: AtomicU32,
    first: [AtomicU32; FIRST],
    further: [OnceLock<Box<[AtomicU32]>>; FURTHER],
    troubles: [OnceLock<Box<[Trouble]>>; FURTHER + 1],
    /// Made with the first report, since many servers send none.
    reports: [OnceLock<Box<[Place]>>; FURTHER + 1],
    pub(crate) book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Trouble {
    failures: AtomicU32,
    penalised_until: AtomicU64,
}

impl Slots {
    /// Calls begun at `index` and not finished; 0 where nobody was given that index.
    #[inline]
    pub fn outstanding(&self, index: u32) -> u32 {
        self.count(index).map_or(0, |count| count.load(Relaxed))
    }

    /// Failures in a row at `index`.
    pub fn failures(&self, index: u32) -> u32 {
        self.trouble(index).map_or(0, |trouble| trouble.failures.load(Relaxed))
    }

    /// When the penalty for recent failures ends, in nanoseconds of the caller's clock; 0 means that there is none.
    #[inline]
    pub fn penalised_until(&self, index: u32) -> u64 {
        if !self.is_troubled() {
            return 0;
        }
        self.trouble(index).map_or(0, |trouble| trouble.penalised_until.load(Relaxed))
    }

    /// Whether any slot has failures; where none has, a pick looks at nothing but counts.
    #[inline]
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Relaxed) != 0
    }

    /// Counts a call that begins at `index`.
    #[inline]
    pub fn begin(&self, index: u32) {
        if let Some(count) = self.count(index) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts a call that ends at `index` and learns from its outcome; `now` as in every pick.
    #[inline]
    pub fn finish(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(count) = self.count(index) else { return };
        // Before the count, since an index with calls under way stays with its instance.
        match outcome {
            Outcome::Ok if self.is_troubled() => self.forgive(index),
            Outcome::Ok | Outcome::Unknown => {}
            Outcome::Failed | Outcome::Unreachable => self.blame(index, outcome, now),
        }
        // Not a plain subtraction: a caller that ends one call twice must not make the endpoint look endlessly busy.
        let _ = count.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    }

    /// Keeps what the server at `index` said of its load in an answer that came at `now`; a report that says nothing, or
    /// for an index that nobody was given, is dropped.
    #[inline]
    pub fn report(&self, index: u32, load: LoadReport, now: u64) {
        if load == LoadReport::default() || self.count(index).is_none() {
            return;
        }
        let (segment, offset) = place(index);
        if let Some(reports) = self.reports.get(segment) {
            let reports = reports.get_or_init(|| (0..FIRST << segment).map(|_| Place::default()).collect());
            reports[offset].put(load, now);
        }
    }

    /// What the server at `index` last said of its load, and when.
    #[inline]
    pub fn reported(&self, index: u32) -> Option<Reported> {
        self.reports_at(index)?.get()
    }

    #[inline]
    fn reports_at(&self, index: u32) -> Option<&Place> {
        let (segment, offset) = place(index);
        self.reports.get(segment)?.get()?.get(offset)
    }

    /// Forgets what the instance that had `index` before said and did.
    pub(crate) fn forget(&self, index: u32) {
        self.forgive(index);
        if let Some(place) = self.reports_at(index) {
            place.clear();
        }
    }

    /// Forgets the failures at `index`.
    #[cold]
    pub(crate) fn forgive(&self, index: u32) {
        if let Some(trouble) = self.trouble(index)
            && trouble.failures.load(Relaxed) != 0
            && trouble.failures.swap(0, Relaxed) != 0
        {
            trouble.penalised_until.store(0, Relaxed);
            self.troubled.fetch_sub(1, Relaxed);
        }
    }

    #[cold]
    fn blame(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(trouble) = self.trouble(index) else { return };
        let before = trouble.failures.fetch_add(1, Relaxed);
        if before == 0 {
            self.troubled.fetch_add(1, Relaxed);
        }
        let penalty = penalty(outcome, before.saturating_add(1));
        if penalty != 0 {
            trouble.penalised_until.fetch_max(now.saturating_add(penalty), Relaxed);
        }
    }

    #[inline]
    fn count(&self, index: u32) -> Option<&AtomicU32> {
        let (segment, offset) = place(index);
        match segment.checked_sub(1) {
            None => self.first.get(offset),
            Some(further) => self.further.get(further)?.get()?.get(offset),
        }
    }

    fn trouble(&self, index: u32) -> Option<&Trouble> {
        let (segment, offset) = place(index);
        self.troubles.get(segment)?.get()?.get(offset)
    }

    /// Makes sure that there is a slot at `index`, below 2^31.
    pub(crate) fn ensure(&self, index: u32) {
        let (segment, _) = place(index);
        let len = FIRST << segment;
        self.troubles[segment].get_or_init(|| (0..len).map(|_| Trouble::default()).collect());
        if let Some(further) = segment.checked_sub(1) {
            self.further[further].get_or_init(|| (0..len).map(|_| AtomicU32::default()).collect());
        }
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
mod tests;
