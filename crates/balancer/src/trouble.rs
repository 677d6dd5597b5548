use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{Outcome, Rule};

/// Answers after which older ones count half, in samples that a share needs at least.
const WINDOW: u64 = 4;
/// Penalties double this often.
const MOST_DOUBLINGS: u32 = 16;
/// For how long an endpoint is passed over that has no room, in nanoseconds, unless a call there ends before.
const FULL: u64 = 20_000_000;
/// How often the first penalty for a share is doubled already.
const SHARE_DOUBLINGS: u32 = 4;

/// What this client holds against one endpoint. Kept apart from its slot, since few have any.
///
/// Two kinds of evidence: a row of failures, which one good answer refutes, and a share of failures among many answers
/// that lies far above the others', which it does not.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// Failures in a row.
    row: AtomicU32,
    /// Until when the endpoint is avoided because it cannot be reached, which is beyond doubt.
    certain: AtomicU64,
    /// Until when it is avoided because of how it answers, which may be the callers' fault.
    doubtful: AtomicU64,
    /// How often its share of failures has spoken against it.
    times: AtomicU32,
    /// When it is to have its whole share again.
    whole: AtomicU64,
    tally: Tally,
}

/// Answers (low half) and failures among them (high half).
#[derive(Debug, Default)]
struct Tally(AtomicU64);

impl Tally {
    fn get(&self) -> (u64, u64) {
        let word = self.0.load(Relaxed);
        (word & u64::from(u32::MAX), word >> 32)
    }

    /// Counts an answer; beyond `most`, what was counted before weighs half.
    fn count(&self, failed: bool, most: u64) {
        let step = 1 | u64::from(failed) << 32;
        let (answers, failures) = self.get();
        match answers >= most {
            false => drop(self.0.fetch_add(step, Relaxed)),
            true => self.0.store(((answers / 2) | ((failures / 2) << 32)) + step, Relaxed),
        }
    }

    fn clear(&self) {
        self.0.store(0, Relaxed);
    }
}

impl Trouble {
    pub(crate) fn row(&self) -> u32 {
        self.row.load(Relaxed)
    }

    /// Until when the endpoint is avoided; in a panic, only what is beyond doubt counts.
    pub(crate) fn until(&self, panic: bool) -> u64 {
        let certain = self.certain.load(Relaxed);
        if panic { certain } else { certain.max(self.doubtful.load(Relaxed)) }
    }

    /// The part of a share, in 1/256, that the endpoint has to do without while it returns.
    pub(crate) fn missing(&self, now: u64) -> u64 {
        let (whole, until) = (self.whole.load(Relaxed), self.doubtful.load(Relaxed));
        let (left, span) = (whole.saturating_sub(now), whole.saturating_sub(until));
        if left == 0 || span == 0 { 0 } else { (left.min(span) << 8) / span }
    }

    /// Counts an answer; says whether nothing is held against the endpoint any more.
    pub(crate) fn answered(&self, rule: &Rule) -> bool {
        self.row.store(0, Relaxed);
        self.certain.store(0, Relaxed);
        if self.times.load(Relaxed) == 0 {
            // Only a row has spoken, and it is broken.
            self.doubtful.store(0, Relaxed);
        }
        self.tally.count(false, rule.window());
        let (answers, failures) = self.tally.get();
        let clean =
            failures == 0 && (self.times.load(Relaxed) == 0 || answers >= u64::from(rule.min_samples));
        clean || !rule.compares_shares()
    }

    /// Counts a failure.
    pub(crate) fn failed(&self, outcome: Outcome, now: u64, rule: &Rule) {
        let row = self.row.fetch_add(1, Relaxed).saturating_add(1);
        if outcome == Outcome::Unreachable {
            self.certain.fetch_max(now.saturating_add(rule.penalty(row - 1)), Relaxed);
        } else if let Some(over) = row.checked_sub(rule.consecutive).filter(|_| rule.consecutive > 0) {
            self.doubtful.fetch_max(now.saturating_add(rule.penalty(over)), Relaxed);
        }
        self.tally.count(true, rule.window());
    }

    /// Has no room for another call now, which speaks neither of failures in a row nor of a share of them.
    pub(crate) fn full(&self, now: u64) {
        self.doubtful.fetch_max(now.saturating_add(FULL), Relaxed);
    }

    /// The share of failures in 1/2^16, once there are answers enough to tell and where shares are compared at all.
    pub(crate) fn share(&self, rule: &Rule) -> Option<u64> {
        let (answers, failures) = self.tally.get();
        (rule.compares_shares() && answers >= u64::from(rule.min_samples)).then(|| (failures << 16) / answers)
    }

    /// Compares its share of failures with those of `others`, a sum and how many it is of; with none to compare with, it
    /// says nothing.
    pub(crate) fn compare(&self, share: u64, (sum, others): (u64, u64), now: u64, rule: &Rule) {
        let margin = (u64::from(rule.failure_percent) << 16) / 100;
        if others == 0 || share < sum / others + margin {
            return;
        }
        let times = self.times.fetch_add(1, Relaxed);
        // A share needs many answers, and so is not told again after a moment: a longer time than for a row.
        let span = rule.penalty(times.saturating_add(SHARE_DOUBLINGS));
        let until = now.saturating_add(span);
        self.doubtful.fetch_max(until, Relaxed);
        self.whole.store(until.saturating_add(span), Relaxed);
        self.tally.clear();
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        self.row.store(0, Relaxed);
        self.certain.store(0, Relaxed);
        self.doubtful.store(0, Relaxed);
        self.times.store(0, Relaxed);
        self.whole.store(0, Relaxed);
        self.tally.clear();
    }
}

impl Rule {
    /// For how many nanoseconds an endpoint is avoided the `times`-th time, from 0: doubled each time up to the longest.
    pub(crate) fn penalty(&self, times: u32) -> u64 {
        self.first_penalty.saturating_mul(1 << times.min(MOST_DOUBLINGS)).min(self.longest_penalty)
    }

    fn compares_shares(&self) -> bool {
        self.failure_percent > 0
    }

    fn window(&self) -> u64 {
        u64::from(self.min_samples) * WINDOW
    }
}

#[cfg(test)]
mod tests;
