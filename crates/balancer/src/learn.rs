use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{
    LoadReport, Rule,
    report::Place,
    rule::{FINE_ONE, TICKS_BITS, Utilisation},
    slots::{Load, Slot, aged},
};

/// Bits of a mean behind those of what it is a mean of.
const MEAN_BITS: u32 = 12;
/// Ticks of every endpoint over which a mean goes, one half of a half-life.
const MEAN_TICKS: u64 = 1 << (TICKS_BITS - 1);
/// No error of utilisation is taken for more than this: an endpoint is wholly busy, or wholly idle, against the mean.
const WHOLE: i64 = 1 << 10;
/// Below this utilisation, in thousandths, differences are noise.
const QUIET: u64 = 20;
/// Up to this many requests of others at an endpoint, each counts as one.
const MANY: i64 = 16;

/// What this client's endpoints have in common: against it, each is measured.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// How many endpoints this client keeps to.
    members: AtomicU32,
    /// What others have under way at an endpoint.
    others: Mean,
    /// Reported utilisation.
    utilisation: Mean,
    /// Corrections.
    cost: Mean,
}

/// A report, where it is kept, and how and when it is taken.
pub(crate) struct News<'a> {
    pub(crate) report: LoadReport,
    /// Whether it came with a good answer to a request.
    pub(crate) is_earned: bool,
    pub(crate) place: &'a Place,
    pub(crate) rule: &'a Rule,
    pub(crate) tick: u32,
}

/// A mean over the endpoints: each counts by the time that its report stands for, not by how many reports it sent, since a
/// busy endpoint answers more often.
#[derive(Debug, Default)]
struct Mean {
    /// The mean with [`MEAN_BITS`] behind the point, plus one; 0 before the first value.
    kept: AtomicU64,
}

impl Mean {
    fn get(&self) -> Option<u64> {
        self.kept.load(Relaxed).checked_sub(1).map(|kept| kept >> MEAN_BITS)
    }

    /// Takes the value of one of `members` endpoints that stands for `ticks`, and returns the mean.
    fn take(&self, value: u64, ticks: u32, members: u32) -> u64 {
        let value = value << MEAN_BITS;
        let Some(kept) = self.kept.load(Relaxed).checked_sub(1) else {
            self.kept.store(value + 1, Relaxed);
            return value >> MEAN_BITS;
        };
        let span = u64::from(members.max(1)) * MEAN_TICKS;
        let share = u64::from(ticks).min(span / 2);
        let kept = if value >= kept {
            kept + (value - kept) * share / span
        } else {
            kept - (kept - value) * share / span
        };
        self.kept.store(kept + 1, Relaxed);
        kept >> MEAN_BITS
    }
}

impl Pool {
    /// Forgets the means.
    pub(crate) fn forget(&self) {
        [&self.others, &self.utilisation, &self.cost]
            .into_iter()
            .for_each(|mean| mean.kept.store(0, Relaxed));
    }

    pub(crate) fn members(&self) -> u32 {
        self.members.load(Relaxed)
    }

    pub(crate) fn set_members(&self, members: u32) {
        self.members.store(members, Relaxed);
    }

    /// What others usually have under way at an endpoint, in 1/256 requests; the usual latency where picks go by it.
    pub(crate) fn others(&self) -> u64 {
        self.others.get().unwrap_or(0)
    }

    /// Takes a latency of an endpoint last heard of `age` ticks ago, in the unit of slots.
    pub(crate) fn take_latency(&self, latency: u64, age: u32) {
        self.others.take(latency, age.min(1 << TICKS_BITS), self.members.load(Relaxed));
    }

    /// Takes a report of the endpoint at `slot`.
    pub(crate) fn learn(&self, slot: &Slot, news: &News<'_>) {
        let News { report, is_earned, rule, tick, .. } = *news;
        let reward = if is_earned { rule.reward } else { 0 };
        let age = slot.age(tick);
        // No single report speaks for longer than a half-life, however rare its caller's calls are.
        let ticks = age.min(1 << TICKS_BITS);
        let cost = self.correct(news, age, ticks);
        let known = slot.load();
        let usual = report.requests.filter(|_| rule.counts_requests).map(|requests| {
            let theirs = u64::from(requests) << Load::BITS;
            let streams = u64::from(report.streams.unwrap_or(0)) << (Load::BITS - 4);
            // The call that this answers is still counted here, and is not in the report.
            let own = slot.own().saturating_sub(1 << Load::BITS);
            let others = (theirs + streams).saturating_sub(own);
            let others = (others * u64::from(known.ratio)) >> Load::RATIO_BITS;
            let others = (others * u64::from(cost)) >> Load::COST_BITS;
            // What cannot be true of one endpoint where it is not nearly so of the others must not empty it.
            let others = others.min(self.others.get().map_or(u64::MAX, |mean| 2 * mean + (8 << Load::BITS)));
            let others = others.min(u64::from(u32::MAX));
            let mean = self.others.take(others, ticks, self.members.load(Relaxed)) as i64;
            // Of hundreds of requests, one more or less is noise: beyond a few, differences count as parts of the mean.
            (others as i64 - mean) * (MANY << Load::BITS) / mean.max(MANY << Load::BITS)
        });
        slot.learn(tick, |load| {
            let kept = aged(load.excess.into(), age);
            let excess = match usual {
                // The reward of an answer (Uber, assisted balancing): who answers more often is worth a little more. Smoothing takes it back
                // with later reports, so that it never adds up to more than `smoothing` rewards. Throughput is what it is
                // for: an answer that is a failure, or none to a request, earns nothing.
                Some(above) => kept + rounded(above - kept, rule.smoothing.into()) - reward,
                None => kept,
            };
            Load { excess: excess.clamp(i32::MIN.into(), i32::MAX.into()) as i32, cost, ..load }
        });
    }

    /// The slow loop: utilisation is what should become equal, and it is known late and averaged. So a correction to what a
    /// call costs at an endpoint integrates the error of its utilisation against the mean, a little at a time and within
    /// bounds: nobody herds on a stale figure, and no lie moves more than the bound.
    fn correct(&self, news: &News<'_>, age: u32, ticks: u32) -> u16 {
        let News { report, place, rule, .. } = *news;
        let utilisation = match rule.utilisation {
            Utilisation::None => None,
            Utilisation::Cpu => report.cpu.map(u64::from),
            Utilisation::Metric => report.metric.map(u64::from),
        };
        let mut cost = faded(place.cost(), age, rule.terms.memory);
        if let Some(utilisation) = utilisation.filter(|_| ticks > 0) {
            let members = self.members.load(Relaxed);
            let mean = self.utilisation.take(utilisation, ticks, members);
            let middle = self.cost.take(cost.into(), ticks, members) as i64;
            let quiet = if rule.utilisation == Utilisation::Cpu { QUIET } else { 1 };
            let error = (utilisation as i64 - mean as i64) * WHOLE / mean.max(quiet) as i64;
            // Only ratios of costs matter: what is common to all is taken back, or one endpoint that cannot be filled
            // would drive all others to the bound.
            let common = (middle - i64::from(FINE_ONE)) * WHOLE / i64::from(FINE_ONE);
            let error = error.clamp(-WHOLE, WHOLE) - common;
            let step =
                (i128::from(cost) * i128::from(error) * i128::from(rule.gain) * i128::from(ticks)) >> 42;
            let (least, most) = (u64::from(FINE_ONE) * u64::from(FINE_ONE) / u64::from(rule.most), rule.most);
            cost = (i128::from(cost) + step).clamp(least.into(), most.into()) as u32;
        } else if utilisation.is_none() {
            // Answers go on and say nothing of it any more.
            let over = i64::from(cost) - i64::from(FINE_ONE);
            cost = (i64::from(cost)
                - over * i64::from(ticks) / i64::from(rule.terms.memory.max(1 << TICKS_BITS)))
                as u32;
        }
        place.set_cost(cost);
        (cost >> (FINE_ONE.ilog2() - Load::COST_BITS)) as u16
    }
}

/// A correction as it counts `age` ticks after the report that it rests on: whole within `memory`, then fading to none
/// with twice the half-life of a report.
#[inline]
pub(crate) fn faded(cost: u32, age: u32, memory: u32) -> u32 {
    match age.checked_sub(memory) {
        None => cost,
        // Between the two, so again a u32.
        Some(over) => (i64::from(FINE_ONE) + aged(i64::from(cost) - i64::from(FINE_ONE), over / 2)) as u32,
    }
}

/// A quotient rounded to the nearest, halves away from zero.
fn rounded(value: i64, by: i64) -> i64 {
    (value + value.signum() * (by / 2)) / by
}

#[cfg(test)]
mod tests;
