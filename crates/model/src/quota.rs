//! How one limit for a whole mesh is divided among its callers, by what each was seen to ask for.
//!
//! A caller says now and then how many calls it was asked for, and is told which part of the limit is its own until it asks
//! again. What all hold never adds up to more than the whole: who asks for more gets only what others have said that they no longer
//! have. Counting every call in one place was rejected: each would wait for it, and none could be made without it.

use std::collections::BTreeMap;

/// The whole of a limit.
pub const ALL_PARTS: u32 = 1_000_000_000;

/// What a caller goes by that was never told its part: a tenth.
pub const UNTOLD_PARTS: u32 = ALL_PARTS / 10;

/// Kept back for callers that have asked for nothing yet, to begin with.
const SPREAD: u64 = ALL_PARTS as u64 / 25;
/// After how many milliseconds without news half of what is known of a demand is forgotten.
const HALF: u64 = 1_000;
/// A caller that was not heard of for so many milliseconds, or three times its own period, has gone.
const GONE: u64 = 7_000;
/// One that was heard of once has after so many: its period is not known, and is ten seconds at most.
const ONCE: u64 = 12_000;
/// How often those are looked for, at most.
const SWEEP: u64 = 500;
/// A part that would grow by less than this fraction stays.
const STEADY: u32 = 20;
/// Callers that share one limit; further ones go by what they have.
const MOST_CALLERS: usize = 10_000;

/// One limit and those who share it.
#[derive(Debug, Default)]
pub struct Quota {
    callers: BTreeMap<u64, Caller>,
    /// Sums over the callers, so that a claim costs no look at all of them.
    told: u64,
    taken: u64,
    demand: u128,
    /// When those who had gone were last looked for.
    swept: u64,
}

#[derive(Debug)]
struct Caller {
    /// Thousandths of calls a second, smoothed.
    demand: u64,
    parts: u32,
    /// What it went by when it was last heard of. The answer that told it less may have been lost: until it says that it has less,
    /// this is not free.
    held: u32,
    heard: u64,
    period: u64,
}

/// What a caller says.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Who it is, by a number drawn by itself.
    pub caller: u64,
    /// How many calls it was asked for since it last said so, let through or not, in thousandths of calls a second.
    pub demand: u64,
    /// The part that it goes by now, where it was told one.
    pub held: Option<u32>,
}

impl Quota {
    /// The part of `claim`'s caller from now on, in [`ALL_PARTS`]; `now` in milliseconds. `None` where too many share this limit
    /// already. While `settling`, as after a restart, nobody gets more than it has: others hold parts that are not known yet.
    pub fn claim(&mut self, claim: Claim, settling: bool, now: u64) -> Option<u32> {
        if now.saturating_sub(self.swept) >= SWEEP {
            self.expire(now);
        }
        if !self.callers.contains_key(&claim.caller) && self.callers.len() >= MOST_CALLERS {
            return None;
        }
        let known = self.callers.get(&claim.caller);
        let (told, taken, demand) =
            known.map(|known| (known.parts, known.taken(), known.demand)).unwrap_or_default();
        let free = u64::from(ALL_PARTS).saturating_sub(self.taken - taken);
        let held = claim.held.unwrap_or(UNTOLD_PARTS).min(ALL_PARTS);
        let caller = self.callers.entry(claim.caller).or_insert_with(|| {
            let had = if settling { held } else { claim.held.unwrap_or(0) };
            let parts = u64::from(had).min(free) as u32;
            Caller { demand: claim.demand, parts, held, heard: now, period: 0 }
        });
        caller.hear(claim.demand, now);
        caller.held = held;
        let (before, own) = (caller.parts, caller.demand);
        self.demand = self.demand - u128::from(demand) + u128::from(own);
        let target = match settling {
            true => u64::from(before),
            false => self.target(own),
        };
        // No more than the whole, since it is at most what is free.
        let parts = target.min(free) as u32;
        // Less is always told: where each of many keeps a little too much, nothing is left for those who come.
        let changes = parts < before || parts - before > before / STEADY;
        let parts = if changes { parts } else { before };
        self.callers.entry(claim.caller).and_modify(|caller| caller.parts = parts);
        self.told = self.told - u64::from(told) + u64::from(parts);
        self.taken = self.taken - taken + u64::from(parts.max(held));
        Some(parts)
    }

    /// Forgets callers that were not heard of for long; whether any are left.
    pub fn expire(&mut self, now: u64) -> bool {
        self.callers.retain(|_, caller| now.saturating_sub(caller.heard) <= caller.patience());
        self.told = self.callers.values().map(|caller| u64::from(caller.parts)).sum();
        self.taken = self.callers.values().map(Caller::taken).sum();
        self.demand = self.callers.values().map(|caller| u128::from(caller.demand)).sum();
        self.swept = now;
        !self.callers.is_empty()
    }

    /// How many share it.
    pub fn callers(&self) -> usize {
        self.callers.len()
    }

    /// What all of them have been told, together.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// What a caller with this demand should have: nearly all by demand, and a little for everybody, one to come included.
    fn target(&self, demand: u64) -> u64 {
        let (own, all) = (u128::from(demand), self.demand);
        let (by_demand, count) = (u128::from(u64::from(ALL_PARTS) - SPREAD), self.callers.len() as u128);
        let share = match all {
            0 => by_demand / count.max(1),
            all => by_demand * own / all,
        };
        // At most the whole, since it is a share of it.
        (share + u128::from(SPREAD) / (count + 1)) as u64
    }
}

impl Caller {
    /// What nobody else can have.
    fn taken(&self) -> u64 {
        self.parts.max(self.held).into()
    }

    /// After which time without news it has gone.
    fn patience(&self) -> u64 {
        match self.period {
            0 => ONCE,
            period => GONE.max(period.saturating_mul(3)),
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
