use fairmesh_model::{
    BalancingPolicy,
    arith::{GAMMA, Generator},
};

use crate::{
    Candidates, EndpointStats, PickConfig,
    config::UNIT_COST,
    endpoint_stats::{LoadEstimate, decay},
    pool_means::fade_cost,
};

mod round_robin;
mod score;

pub use score::SCORE_BITS;

/// Maximum number of endpoints of which all are compared. With so few, two random ones are often the wrong two.
pub const FULL_SCAN_MAX: usize = 4;

/// Inputs of a pick besides the candidates.
///
/// Panic ignores ejections for failed responses when their share of the candidates exceeds the configured threshold.
/// The remaining endpoints could not carry the load, and so many failures are seldom the endpoints' own fault. A
/// caller with candidates further away shares its calls with them instead
/// ([`keeping_ejections`](Self::keeping_ejections)).
#[derive(Clone, Copy, Debug)]
pub struct PickContext<'a> {
    /// Counts, load reports and failures of the endpoints.
    stats: &'a EndpointStats,
    pick_config: PickConfig,
    attempted: &'a [u32],
    now: u64,
    panic: bool,
    /// Whether all ejections count, which excludes panic mode.
    keeps_ejections: bool,
}

impl<'a> PickContext<'a> {
    /// Creates a context. `attempted` are the endpoints of earlier attempts of this call. `now` is in nanoseconds of
    /// the clock passed to [`EndpointStats::finish`].
    #[inline]
    pub fn new(stats: &'a EndpointStats, pick_config: PickConfig, attempted: &'a [u32], now: u64) -> Self {
        Self { stats, pick_config, attempted, now, panic: false, keeps_ejections: false }
    }

    /// Returns the context without panic mode, for callers that use only the capacity of candidates that are not
    /// ejected.
    pub fn keeping_ejections(&self) -> Self {
        Self { keeps_ejections: true, ..*self }
    }

    /// The share of candidates that are not ejected, in thousandths.
    pub fn unejected(&self, candidates: &Candidates<'_>) -> u32 {
        let ejected = |index: &&u32| self.stats.ejected_until(**index) > self.now;
        let ejected = candidates.indices().iter().filter(ejected).count();
        ((candidates.len() - ejected) * 1000 / candidates.len().max(1)) as u32
    }
}

/// Why an endpoint should not be picked. The endpoint with the least exclusion wins, regardless of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// Nothing speaks against the endpoint.
    None,
    /// Ejected by outlier detection.
    Ejected,
    /// An earlier attempt of this call used the endpoint.
    Attempted,
    /// Both attempted and ejected.
    AttemptedAndEjected,
}

impl Exclusion {
    #[inline]
    fn is_ejected(self) -> bool {
        matches!(self, Self::Ejected | Self::AttemptedAndEjected)
    }
}

/// A candidate with the values compared by a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredEndpoint {
    /// Index of the endpoint.
    pub index: u32,
    /// Weight of the endpoint.
    pub weight: u32,
    /// Number of this client's calls in flight at the endpoint.
    pub outstanding: u32,
    /// Why the endpoint should not be picked.
    pub exclusion: Exclusion,
    /// Whether the pick is in panic and ignores ejections for failed responses.
    pub panic: bool,
    /// Score in 2^-[`SCORE_BITS`] requests on an ordinary endpoint; 0 for policies without a score.
    pub score: i64,
}

/// Observes the candidates of a pick. `()` records nothing and costs nothing.
pub trait PickTracer {
    /// Called for each candidate that the pick compares, in order.
    #[inline]
    fn record_candidate(&mut self, _standing: &ScoredEndpoint) {}
}

impl PickTracer for () {}

/// Picks an endpoint by the policy of the context. Returns `None` without candidates.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as for `score_endpoint`")]
pub fn pick<W: PickTracer>(
    candidates: &Candidates<'_>,
    context: &PickContext<'_>,
    random: &mut Generator,
    tracer: &mut W,
) -> Option<ScoredEndpoint> {
    match context.pick_config.policy {
        BalancingPolicy::Score | BalancingPolicy::BoundedHash => {
            context.p2c_by_score(candidates, random, tracer)
        }
        // Panic is determined before the draw, because these policies rotate over or compare all candidates. Scanning
        // the candidates costs time only while many endpoints are suspect.
        _ if context.is_panic(candidates) => {
            pick_in_known_state(candidates, &PickContext { panic: true, ..*context }, random, tracer)
        }
        _ => pick_in_known_state(candidates, context, random, tracer),
    }
}

#[inline]
fn pick_in_known_state<W: PickTracer>(
    candidates: &Candidates<'_>,
    context: &PickContext<'_>,
    random: &mut Generator,
    tracer: &mut W,
) -> Option<ScoredEndpoint> {
    match context.pick_config.policy {
        BalancingPolicy::RoundRobin => context.round_robin(candidates, random, tracer),
        _ => context.p2c(candidates, random, tracer),
    }
}

impl PickContext<'_> {
    /// Compares all endpoints if there are at most [`FULL_SCAN_MAX`]. Otherwise draws two different ones by weight, and
    /// the second wins only if it is strictly better (power of two choices; ServiceRouter §3.4, §3.4.2). If both are
    /// excluded, compares all. Ties are broken by weight.
    fn p2c<W: PickTracer>(
        &self,
        candidates: &Candidates<'_>,
        random: &mut Generator,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        if candidates.len() <= FULL_SCAN_MAX {
            return self.best_candidate(candidates, random, tracer);
        }
        let first = candidates.sample(random);
        let second = candidates.sample_excluding(first, random);
        let (a, b) = (self.score_position(candidates, first), self.score_position(candidates, second));
        tracer.record_candidate(&a);
        tracer.record_candidate(&b);
        let winner = if self.is_better(&b, &a) { b } else { a };
        if winner.exclusion == Exclusion::None {
            return Some(winner);
        }
        self.best_candidate_cold(candidates, random, tracer)
    }

    /// Scores the candidate at `position`.
    #[inline]
    fn score_position(&self, candidates: &Candidates<'_>, position: usize) -> ScoredEndpoint {
        self.score_endpoint(candidates.indices()[position], candidates.weight(position))
    }

    /// Scores an endpoint.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "else it comes back through memory, piecemeal, and every pick stalls twice"
    )]
    pub fn score_endpoint(&self, index: u32, weight: u32) -> ScoredEndpoint {
        let Some(hot) = self.stats.hot(index) else {
            return ScoredEndpoint {
                index,
                weight,
                outstanding: 0,
                exclusion: Exclusion::None,
                panic: self.panic,
                score: 0,
            };
        };
        let load = hot.load();
        let score = match self.pick_config.policy {
            BalancingPolicy::Score | BalancingPolicy::BoundedHash => self.load_score(hot, load),
            BalancingPolicy::PeakEwma => self.latency_score(hot, load),
            _ => 0,
        };
        let (ejected, ramp) = if load.suspect { self.ejection(index) } else { (false, 0) };
        let attempted = !self.attempted.is_empty() && self.attempted.contains(&index);
        let exclusion = match (attempted, ejected) {
            (false, false) => Exclusion::None,
            (false, true) => Exclusion::Ejected,
            (true, false) => Exclusion::Attempted,
            (true, true) => Exclusion::AttemptedAndEjected,
        };
        ScoredEndpoint {
            index,
            weight,
            outstanding: hot.calls(),
            exclusion,
            panic: self.panic,
            score: score + ramp,
        }
    }

    /// Whether a suspect endpoint is ejected, and the amount added to its score while it ramps up after an ejection.
    /// The amount begins at one request and shrinks.
    #[cold]
    fn ejection(&self, index: u32) -> (bool, i64) {
        let Some(outlier) = self.stats.outlier(index) else { return (false, 0) };
        let ramp = match self.pick_config.policy {
            BalancingPolicy::Score if !self.panic => {
                (outlier.ramp_remaining(self.now) << (SCORE_BITS - 8)).cast_signed()
            }
            _ => 0,
        };
        (outlier.ejected_until(self.panic) > self.now, ramp)
    }

    /// Whether ejections for failed responses exceed the panic threshold among the candidates.
    #[inline]
    fn is_panic(&self, candidates: &Candidates<'_>) -> bool {
        match self.stats.suspects() {
            0 => false,
            _ if self.keeps_ejections => false,
            suspects => self.is_panic_among(candidates, suspects),
        }
    }

    /// Panic check for the case that there are suspect endpoints. Scans the candidates only if enough endpoints are
    /// suspect to exceed the threshold.
    #[cold]
    fn is_panic_among(&self, candidates: &Candidates<'_>, suspects: u32) -> bool {
        let max_percent = u64::from(self.stats.config().panic_percent) * candidates.len() as u64;
        if u64::from(suspects) * 100 <= max_percent {
            return false;
        }
        let suspects = candidates
            .indices()
            .iter()
            .filter(|&&index| self.stats.hot(index).is_some_and(|hot| hot.load().suspect));
        let response_ejected = suspects.filter_map(|&index| self.stats.outlier(index)).filter(|outlier| {
            outlier.ejected_until(false) > self.now && outlier.ejected_until(true) <= self.now
        });
        response_ejected.count() as u64 * 100 > max_percent
    }

    /// Whether `a` is strictly better than `b`: less excluded or, if equally excluded, less loaded by the policy.
    #[inline]
    fn is_better(&self, a: &ScoredEndpoint, b: &ScoredEndpoint) -> bool {
        if a.exclusion != b.exclusion {
            return a.exclusion < b.exclusion;
        }
        match self.pick_config.policy {
            // The next call is not counted. Otherwise the heavier of two idle endpoints would always win, in addition
            // to being drawn more often, and a client with few calls would starve the other. a/v < b/w is compared
            // exactly as a*w < b*v: products are below 2^64 since each factor is below 2^32.
            BalancingPolicy::LeastRequest => {
                u64::from(a.outstanding) * u64::from(b.weight)
                    < u64::from(b.outstanding) * u64::from(a.weight)
            }
            BalancingPolicy::PeakEwma | BalancingPolicy::Score | BalancingPolicy::BoundedHash => {
                a.score < b.score
            }
            BalancingPolicy::RoundRobin | BalancingPolicy::Random => false,
        }
    }

    /// The best candidate by position. Equal candidates win in proportion to their weights (reservoir sampling: a
    /// candidate replaces the current best when `below(weights of the equals so far, its own included)` is less than
    /// its weight).
    #[inline]
    fn best_candidate<W: PickTracer>(
        &self,
        candidates: &Candidates<'_>,
        random: &mut Generator,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        let mut best: Option<ScoredEndpoint> = None;
        let mut equal_weight = 0;
        for position in 0..candidates.len() {
            let scored = self.score_position(candidates, position);
            tracer.record_candidate(&scored);
            let weight = u64::from(scored.weight);
            match best {
                Some(current) if self.is_better(&current, &scored) => {}
                Some(current) if !self.is_better(&scored, &current) => {
                    equal_weight += weight;
                    if random.below(equal_weight) < weight {
                        best = Some(scored);
                    }
                }
                _ => (best, equal_weight) = (Some(scored), weight),
            }
        }
        best
    }

    /// Compares all candidates. A separate function, to keep this code out of the hot path.
    #[cold]
    fn best_candidate_cold<W: PickTracer>(
        &self,
        candidates: &Candidates<'_>,
        random: &mut Generator,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        self.best_candidate(candidates, random, tracer)
    }
}

#[cfg(test)]
mod tests;
