//! How one limit for a whole mesh is divided among its callers, by what each was seen to ask for.
//!
//! A caller reports now and then how many calls it was asked for, and receives the part of the limit that is its own until its next
//! report. Reports are claims, and a claim may be false. So the parts that all hold never add up to more than the whole by what
//! was *given out*, not by what is claimed; a caller that wants no more than an equal part of the limit receives it, whatever
//! others claim; and no demand counts for more than the whole limit. Counting every call in one place was rejected: each would
//! wait for it, and none could be made without it.

use std::collections::BTreeMap;

mod division;

use division::Division;

/// The whole of a limit.
pub const ALL_PARTS: u32 = 1_000_000_000;

/// The part that a caller goes by before its first response: a tenth.
pub const UNTOLD_PARTS: u32 = ALL_PARTS / 10;

/// Kept back for callers that have asked for nothing yet, to begin with.
const SPREAD: u64 = ALL_PARTS as u64 / 25;
/// After how many milliseconds without news half of what is known of a demand is forgotten.
const HALF: u64 = 1_000;
/// A caller without a claim for so many milliseconds, or three times its own period, has gone.
const GONE: u64 = 7_000;
/// One with a single claim has after so many: its period is not known, and is ten seconds at most.
const ONCE: u64 = 12_000;
/// How often those are looked for, at most.
const SWEEP: u64 = 500;
/// A part that would grow by less than this fraction stays.
const STEADY: u32 = 20;
/// Callers that share one limit; further ones go by what they have.
pub const MAX_CALLERS: usize = 10_000;

/// One limit and those who share it.
#[derive(Debug, Default)]
pub struct Quota {
    callers: BTreeMap<u64, Caller>,
    /// Sums over the callers, so that a claim costs no look at all of them.
    told: u64,
    taken: u64,
    division: Division,
    /// Claims since the division was computed.
    stale: usize,
    /// Whether callers were noted whose parts another process gave out.
    unsettled: bool,
    /// When those who had gone were last looked for.
    swept: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Caller {
    /// Thousandths of calls a second, smoothed.
    demand: u64,
    parts: u32,
    /// What it went by at its last claim, never more than it was given. The response with a smaller part may have been lost: until the
    /// caller claims less, or its time to give back is over, this is not free.
    held: u32,
    /// Since when it claims to hold more than its part.
    excess_since: Option<u64>,
    heard: u64,
    period: u64,
}

/// One caller's report.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// A number drawn by the caller itself.
    pub caller: u64,
    /// Calls that it was asked for since its last claim, let through or not, in thousandths of calls a second.
    pub demand: u64,
    /// The part that it goes by now, where it received one.
    pub held: Option<u32>,
}

impl Quota {
    /// The part of `claim`'s caller from now on, in [`ALL_PARTS`]; `whole` is the limit in thousandths of calls a second, `now` in
    /// milliseconds. `None` where too many share this limit already.
    pub fn claim(&mut self, claim: Claim, whole: u64, now: u64) -> Option<u32> {
        if self.unsettled {
            self.settle();
        }
        let mut caller = self.known(claim, now)?;
        let before = caller.parts;
        caller.hear(claim.demand, now);
        caller.hold(claim.held.unwrap_or(UNTOLD_PARTS), now);
        self.put(claim.caller, caller);
        self.weigh(whole);
        // No more than the whole, since it is at most what is free.
        let free = u64::from(ALL_PARTS).saturating_sub(self.taken - caller.taken());
        let room_for_another = SPREAD / (self.callers.len() as u64 + 1);
        let parts = (self.division.share(caller.demand) + room_for_another).min(free) as u32;
        // Less is always sent: where each of many keeps a little too much, nothing is left for those who come.
        let changes = parts < before || parts - before > before / STEADY;
        caller.parts = if changes { parts } else { before };
        self.put(claim.caller, caller);
        Some(caller.parts)
    }

    /// Notes a claim without giving out a part, as after a restart, while callers hold parts that are not known yet. They go on by
    /// what they have. With the first [`Quota::claim`] what they hold is believed as far as it adds up to the whole, small parts first.
    pub fn note(&mut self, claim: Claim, now: u64) {
        let Some(mut caller) = self.known(claim, now) else { return };
        caller.hear(claim.demand, now);
        caller.held = claim.held.unwrap_or(0).min(ALL_PARTS);
        caller.parts = caller.held;
        self.put(claim.caller, caller);
        self.unsettled = true;
    }

    /// Forgets callers without a claim for long; whether any are left.
    pub fn expire(&mut self, now: u64) -> bool {
        self.callers.retain(|_, caller| now.saturating_sub(caller.heard) <= caller.patience());
        self.sum();
        self.stale = usize::MAX;
        self.swept = now;
        !self.callers.is_empty()
    }

    /// Whether `caller` shares it.
    pub fn knows(&self, caller: u64) -> bool {
        self.callers.contains_key(&caller)
    }

    /// How many share it.
    pub fn callers(&self) -> usize {
        self.callers.len()
    }

    /// The parts that were given out, together.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// What is known of a claim's caller, or a new one where there is room.
    fn known(&mut self, claim: Claim, now: u64) -> Option<Caller> {
        if now.saturating_sub(self.swept) >= SWEEP {
            self.expire(now);
        }
        match self.callers.get(&claim.caller) {
            Some(caller) => Some(*caller),
            None if self.callers.len() >= MAX_CALLERS => None,
            None => Some(Caller { demand: claim.demand, heard: now, ..Caller::default() }),
        }
    }

    fn put(&mut self, number: u64, caller: Caller) {
        let before = self.callers.insert(number, caller).unwrap_or_default();
        self.told = self.told - u64::from(before.parts) + u64::from(caller.parts);
        self.taken = self.taken - before.taken() + caller.taken();
    }

    fn sum(&mut self) {
        self.told = self.callers.values().map(|caller| u64::from(caller.parts)).sum();
        self.taken = self.callers.values().map(Caller::taken).sum();
    }

    /// Divides anew after as many claims as a sixteenth of the callers, so that a claim costs sixteen looks at one caller.
    fn weigh(&mut self, whole: u64) {
        self.stale = self.stale.saturating_add(1);
        if self.stale > self.callers.len() / 16 || self.division.whole() != whole {
            self.division = Division::of(self.callers.values().map(|caller| caller.demand), whole);
            self.stale = 0;
        }
    }

    /// Cuts what callers say that they hold to what can have been given out: the largest first, so that false claims cost those who
    /// made them.
    fn settle(&mut self) {
        let mut held: Vec<u64> = self.callers.values().map(|caller| caller.held.into()).collect();
        held.sort_unstable();
        let (mut left, mut level) = (u64::from(ALL_PARTS), u64::from(ALL_PARTS));
        for (i, part) in held.iter().enumerate() {
            let even = left / (held.len() - i) as u64;
            if *part > even {
                level = even;
                break;
            }
            left -= part;
        }
        for caller in self.callers.values_mut() {
            // At most ALL_PARTS.
            caller.held = u64::from(caller.held).min(level) as u32;
            caller.parts = caller.held;
        }
        self.sum();
        self.unsettled = false;
    }
}

impl Caller {
    /// What no other caller can have.
    fn taken(&self) -> u64 {
        self.parts.max(self.held).into()
    }

    /// After which time without news it has gone, and in which it gives back what it has too much.
    fn patience(&self) -> u64 {
        match self.period {
            0 => ONCE,
            period => GONE.max(period.saturating_mul(3)),
        }
    }

    /// Believes that it holds `held`, up to what it was given, and for as long as a lost response may explain it.
    fn hold(&mut self, held: u32, now: u64) {
        self.held = held.min(self.held.max(self.parts));
        if self.held <= self.parts {
            self.excess_since = None;
        } else if now.saturating_sub(*self.excess_since.get_or_insert(now)) > self.patience() {
            self.held = self.parts;
        }
    }

    /// Moves what is known of its demand by the time for which the news speaks.
    fn hear(&mut self, demand: u64, now: u64) {
        let elapsed = now.saturating_sub(self.heard);
        let (old, new) = (u128::from(self.demand), u128::from(demand));
        let (kept, heard) = (u128::from(HALF), u128::from(elapsed));
        // Between the two.
        self.demand = ((old * kept + new * heard) / (kept + heard).max(1)) as u64;
        (self.period, self.heard) = (elapsed, now);
    }
}

#[cfg(test)]
mod tests;
