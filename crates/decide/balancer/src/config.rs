use std::time::Duration;

use fairmesh_model::{Balancing, BalancingPolicy, LoadSignal};

use crate::endpoint_stats::LoadEstimate;

/// Ticks per half-life of a report, as a power of two. Ages therefore have 8 fractional bits.
pub(crate) const TICK_BITS: u32 = 8;
/// The neutral cost, with the precision of reports.
pub(crate) const UNIT_COST: u32 = 1 << 20;

/// The part of a [`BalancerConfig`] that a pick reads: a quarter of a cache line.
///
/// Time is counted in ticks, 1/256 of the half-life of a report, so that decay is a shift and one multiplication.
#[derive(Clone, Copy, Debug)]
pub struct PickConfig {
    /// Ticks per nanosecond, times 2^64.
    ticks_per_nano: u64,
    /// How long a cost stays valid without reports, in ticks.
    pub(crate) memory: u32,
    pub(crate) policy: BalancingPolicy,
}

/// The balancing policy of a service, with its constants converted to the units in which they are used.
#[derive(Clone, Copy, Debug)]
pub struct BalancerConfig {
    pub(crate) pick_config: PickConfig,
    /// Whether reported request counts are used.
    pub(crate) counts_requests: bool,
    pub(crate) utilisation: Utilisation,
    pub(crate) smoothing: u32,
    /// Change of a cost per tick and unit of error, times 2^32.
    pub(crate) gain: u64,
    /// Maximum cost; the minimum is its reciprocal. [`UNIT_COST`] is neutral.
    pub(crate) max_cost: u32,
    /// Initial load of a new endpoint, in percent of the mean load.
    pub(crate) warm_up: u32,
    /// Excess that a rewarded response subtracts, in units of load.
    pub(crate) reward: i64,
    pub(crate) consecutive: u32,
    pub(crate) failure_percent: u32,
    pub(crate) min_samples: u32,
    pub(crate) panic_percent: u32,
    pub(crate) base_ejection: u64,
    load_factor: u32,
    pub(crate) max_ejection: u64,
}

/// The reported utilisation that is equalised among endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Utilisation {
    None,
    Cpu,
    Metric,
}

impl BalancerConfig {
    /// Converts the configuration of a policy.
    pub fn new(balancing: &Balancing) -> Self {
        let Balancing { policy, signal, score, outliers, .. } = balancing;
        // The model keeps half-lives above 100 ms, so no value leads to a division by zero.
        let half_life = u128::from(nanos(score.half_life).max(1));
        let ticks_per_nano = ((1_u128 << (64 + TICK_BITS)) / half_life).min(u128::from(u64::MAX)) as u64;
        let tick = half_life >> TICK_BITS;
        Self {
            pick_config: PickConfig {
                ticks_per_nano,
                memory: (u128::from(nanos(score.memory)) / tick.max(1)).min(1 << 30) as u32,
                policy: *policy,
            },
            counts_requests: matches!(
                signal,
                LoadSignal::Auto | LoadSignal::Requests | LoadSignal::Metric(_)
            ),
            utilisation: match signal {
                LoadSignal::Auto | LoadSignal::Cpu => Utilisation::Cpu,
                LoadSignal::Requests => Utilisation::None,
                LoadSignal::Metric(_) => Utilisation::Metric,
            },
            smoothing: score.smoothing.max(1),
            gain: ((u128::from(score.gain) * tick) << 32).div_ceil(100_000_000_000) as u64,
            max_cost: UNIT_COST * score.correction.clamp(1, 8),
            warm_up: score.warm_up,
            reward: (i64::from(score.reward) << LoadEstimate::BITS) / 100,
            load_factor: balancing.load_factor,
            consecutive: outliers.consecutive,
            failure_percent: outliers.failure_percent,
            min_samples: outliers.min_samples.max(1),
            panic_percent: outliers.most_percent,
            base_ejection: nanos(outliers.first),
            max_ejection: nanos(outliers.longest),
        }
    }

    /// Maximum load of one endpoint in percent of the mean, for hashing with bounded loads.
    #[inline]
    pub fn load_factor(&self) -> u32 {
        self.load_factor
    }

    /// The initial excess of a new endpoint (slow start), in units of load, given the mean load of own calls and of
    /// `others` (Uber, assisted balancing). The endpoint counts as carrying the configured percentage of the mean, but
    /// exceeds the mean by at most that percentage of one request. A lead of one request decides a pick. With an excess
    /// of ten requests, a new endpoint of a service with long requests would get no calls for many half-lives.
    pub(crate) fn initial_excess(&self, own: u64, others: u64) -> u64 {
        let (mean, warm_up) = (own + others, u64::from(self.warm_up));
        (mean * warm_up / 100).min(mean + (warm_up << LoadEstimate::BITS) / 100).saturating_sub(others)
    }

    /// The policy by which endpoints are compared.
    pub fn policy(&self) -> BalancingPolicy {
        self.pick_config.policy
    }

    /// The part of the configuration that picks read.
    pub fn pick_config(&self) -> PickConfig {
        self.pick_config
    }
}

impl PickConfig {
    /// The policy by which endpoints are compared.
    #[inline]
    pub fn policy(&self) -> BalancingPolicy {
        self.policy
    }

    /// Ticks per nanosecond, times 2^64.
    pub fn ticks_per_nano(&self) -> u64 {
        self.ticks_per_nano
    }

    /// How long an endpoint's cost stays valid without reports, in ticks.
    pub fn memory(&self) -> u32 {
        self.memory
    }

    /// Converts the time to ticks, at least 1, because 0 means "no report yet". Ticks wrap around after 2^32: 2.6 years
    /// at the default half-life, 19 days at the shortest. A report of exactly that age would once count as fresh.
    #[inline]
    pub(crate) fn tick(&self, now: u64) -> u32 {
        // The low 32 bits of a monotonic count.
        (((u128::from(now) * u128::from(self.ticks_per_nano)) >> 64) as u32).max(1)
    }
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self::new(&Balancing::default())
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
