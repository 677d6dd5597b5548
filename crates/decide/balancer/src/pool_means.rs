use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{
    BalancerConfig, LoadReport,
    config::{TICK_BITS, UNIT_COST, Utilisation},
    endpoint_stats::{HotStats, LoadEstimate, decay},
    load_report::ReportCell,
};

/// Fractional bits of a mean in addition to those of its values.
const MEAN_BITS: u32 = 12;
/// Number of ticks that a mean spans for each endpoint: half a half-life.
const MEAN_TICKS: u64 = 1 << (TICK_BITS - 1);
/// Maximum error of the utilisation: that of an endpoint that is completely busy or completely idle while the mean is
/// the opposite.
const MAX_ERROR: i64 = 1 << 10;
/// Utilisation in thousandths below which differences are noise.
const MIN_UTILISATION: u64 = 20;
/// Maximum number of other callers' requests for which excess is counted in requests. Above it, excess is relative to
/// the mean.
const ABSOLUTE_REQUESTS: i64 = 16;

/// Means over the endpoints of this client's subset, with which each endpoint is compared.
#[derive(Debug, Default)]
pub(crate) struct PoolMeans {
    /// Number of endpoints in the subset.
    members: AtomicU32,
    /// Mean number of other callers' requests in flight at an endpoint.
    others: Mean,
    /// Mean reported utilisation.
    utilisation: Mean,
    /// Mean cost.
    cost: Mean,
}

/// A report to apply, with its storage and context.
pub(crate) struct ReportUpdate<'a> {
    pub(crate) report: LoadReport,
    /// Whether the report came with a successful response to a request.
    pub(crate) is_rewarded: bool,
    pub(crate) cell: &'a ReportCell,
    pub(crate) config: &'a BalancerConfig,
    pub(crate) tick: u32,
}

/// A mean over the endpoints. Each endpoint is weighted by the time since its previous report rather than by its number
/// of reports, since a busy endpoint responds more often.
#[derive(Debug, Default)]
struct Mean {
    /// The mean with [`MEAN_BITS`] more fractional bits, plus one; 0 before the first value.
    encoded: AtomicU64,
}

impl Mean {
    fn get(&self) -> Option<u64> {
        self.encoded.load(Relaxed).checked_sub(1).map(|mean| mean >> MEAN_BITS)
    }

    /// Adds a value of one of `members` endpoints, weighted by `ticks`, and returns the mean.
    fn add(&self, value: u64, ticks: u32, members: u32) -> u64 {
        let value = value << MEAN_BITS;
        let Some(mean) = self.encoded.load(Relaxed).checked_sub(1) else {
            self.encoded.store(value + 1, Relaxed);
            return value >> MEAN_BITS;
        };
        let span = u64::from(members.max(1)) * MEAN_TICKS;
        let share = u64::from(ticks).min(span / 2);
        let mean = if value >= mean {
            mean + (value - mean) * share / span
        } else {
            mean - (mean - value) * share / span
        };
        self.encoded.store(mean + 1, Relaxed);
        mean >> MEAN_BITS
    }
}

impl PoolMeans {
    /// Clears the means.
    pub(crate) fn reset(&self) {
        [&self.others, &self.utilisation, &self.cost]
            .into_iter()
            .for_each(|mean| mean.encoded.store(0, Relaxed));
    }

    pub(crate) fn members(&self) -> u32 {
        self.members.load(Relaxed)
    }

    pub(crate) fn set_members(&self, members: u32) {
        self.members.store(members, Relaxed);
    }

    /// Mean number of other callers' requests at an endpoint, in 1/256 requests; the mean latency if the policy uses
    /// latency.
    pub(crate) fn others(&self) -> u64 {
        self.others.get().unwrap_or(0)
    }

    /// Adds a latency, in the unit of [`LoadEstimate::excess`], of an endpoint that was last updated `age` ticks ago.
    pub(crate) fn add_latency(&self, latency: u64, age: u32) {
        self.others.add(latency, age.min(1 << TICK_BITS), self.members.load(Relaxed));
    }

    /// Applies a report of the endpoint at `hot`.
    pub(crate) fn apply_report(&self, hot: &HotStats, update: &ReportUpdate<'_>) {
        let ReportUpdate { report, is_rewarded, config, tick, .. } = *update;
        let reward = if is_rewarded { config.reward } else { 0 };
        let age = hot.age(tick);
        // A single report weighs at most a half-life, however rare the caller's calls.
        let ticks = age.min(1 << TICK_BITS);
        let cost = self.update_cost(update, age, ticks);
        let known = hot.load();
        let observed = report.requests.filter(|_| config.counts_requests).map(|requests| {
            let requests = u64::from(requests) << LoadEstimate::BITS;
            let streams = u64::from(report.streams.unwrap_or(0)) << (LoadEstimate::BITS - 4);
            // The response's own call is still counted here, but is not in the report.
            let own = hot.own_load().saturating_sub(1 << LoadEstimate::BITS);
            let others = (requests + streams).saturating_sub(own);
            let others = (others * u64::from(known.weight_ratio)) >> LoadEstimate::WEIGHT_RATIO_BITS;
            let others = (others * u64::from(cost)) >> LoadEstimate::COST_BITS;
            // An implausible value must not starve the endpoint, unless other endpoints report nearly the same.
            let others =
                others.min(self.others.get().map_or(u64::MAX, |mean| 2 * mean + (8 << LoadEstimate::BITS)));
            let others = others.min(u64::from(u32::MAX));
            let mean = self.others.add(others, ticks, self.members.load(Relaxed)) as i64;
            // One request more or less among hundreds is noise. Beyond a few requests, differences therefore count
            // relative to the mean.
            (others as i64 - mean) * (ABSOLUTE_REQUESTS << LoadEstimate::BITS)
                / mean.max(ABSOLUTE_REQUESTS << LoadEstimate::BITS)
        });
        hot.update_load(tick, |load| {
            let decayed = decay(load.excess.into(), age);
            let excess = match observed {
                // The throughput reward (Uber, assisted balancing) slightly prefers an endpoint that responds more
                // often. Later reports decay the reward by smoothing, so it never adds up to more than `smoothing`
                // rewards. Failed responses and polls complete no request and earn none.
                Some(target) => decayed + rounded(target - decayed, config.smoothing.into()) - reward,
                None => decayed,
            };
            LoadEstimate { excess: excess.clamp(i32::MIN.into(), i32::MAX.into()) as i32, cost, ..load }
        });
    }

    /// The slow loop equalises utilisation, although reports of it are late and averaged. The cost of a call integrates
    /// the error of the endpoint's utilisation against the mean, slowly and within bounds. Callers therefore do not
    /// herd on a stale value, and a wrong report moves the cost at most to its bound.
    fn update_cost(&self, update: &ReportUpdate<'_>, age: u32, ticks: u32) -> u16 {
        let ReportUpdate { report, cell, config, .. } = *update;
        let utilisation = match config.utilisation {
            Utilisation::None => None,
            Utilisation::Cpu => report.cpu.map(u64::from),
            Utilisation::Metric => report.metric.map(u64::from),
        };
        let mut cost = fade_cost(cell.cost(), age, config.pick_config.memory);
        if let Some(utilisation) = utilisation.filter(|_| ticks > 0) {
            let members = self.members.load(Relaxed);
            let mean = self.utilisation.add(utilisation, ticks, members);
            let mean_cost = self.cost.add(cost.into(), ticks, members) as i64;
            let min_mean = if config.utilisation == Utilisation::Cpu { MIN_UTILISATION } else { 1 };
            let error = (utilisation as i64 - mean as i64) * MAX_ERROR / mean.max(min_mean) as i64;
            // Only ratios of costs matter, so the common part is subtracted. Otherwise one endpoint that cannot be
            // filled would drive all others to the bound.
            let common = (mean_cost - i64::from(UNIT_COST)) * MAX_ERROR / i64::from(UNIT_COST);
            let error = error.clamp(-MAX_ERROR, MAX_ERROR) - common;
            let step =
                (i128::from(cost) * i128::from(error) * i128::from(config.gain) * i128::from(ticks)) >> 42;
            let (min_cost, max_cost) =
                (u64::from(UNIT_COST) * u64::from(UNIT_COST) / u64::from(config.max_cost), config.max_cost);
            cost = (i128::from(cost) + step).clamp(min_cost.into(), max_cost.into()) as u32;
        } else if utilisation.is_none() {
            // Reports still arrive, but without utilisation.
            let over = i64::from(cost) - i64::from(UNIT_COST);
            cost = (i64::from(cost)
                - over * i64::from(ticks) / i64::from(config.pick_config.memory.max(1 << TICK_BITS)))
                as u32;
        }
        cell.set_cost(cost);
        (cost >> (UNIT_COST.ilog2() - LoadEstimate::COST_BITS)) as u16
    }
}

/// Returns a cost `age` ticks after its last report. It is unchanged within `memory`, and then fades to neutral with
/// twice the half-life of a report.
#[inline]
pub(crate) fn fade_cost(cost: u32, age: u32, memory: u32) -> u32 {
    match age.checked_sub(memory) {
        None => cost,
        // The result lies between both costs, so it is a u32.
        Some(over) => (i64::from(UNIT_COST) + decay(i64::from(cost) - i64::from(UNIT_COST), over / 2)) as u32,
    }
}

/// Returns a quotient rounded to the nearest integer, halves away from zero.
fn rounded(value: i64, by: i64) -> i64 {
    (value + value.signum() * (by / 2)) / by
}

#[cfg(test)]
mod tests;
