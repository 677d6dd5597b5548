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

/// Up to this many endpoints all are looked at: two of so few are often the wrong two.
pub const FULL_SCAN_MAX: usize = 4;

/// What a pick depends on beside the endpoints.
///
/// Where more of the endpoints than the rule allows are avoided for how they answer, nobody is (panic): the others could not
/// carry all, and what all complain of is seldom the endpoints' own fault.
#[derive(Clone, Copy, Debug)]
pub struct PickContext<'a> {
    /// What this client knows of the endpoints.
    stats: &'a EndpointStats,
    pick_config: PickConfig,
    attempted: &'a [u32],
    now: u64,
    panic: bool,
}

impl<'a> PickContext<'a> {
    /// What this client knows of the endpoints, how the service is balanced, which endpoints this call tried already, and
    /// the nanoseconds of the clock that [`EndpointStats::finish`] gets.
    #[inline]
    pub fn new(stats: &'a EndpointStats, pick_config: PickConfig, attempted: &'a [u32], now: u64) -> Self {
        Self { stats, pick_config, attempted, now, panic: false }
    }
}

/// What speaks against an endpoint; whoever carries less wins, whatever the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// Nothing.
    None,
    /// Its last calls failed.
    Ejected,
    /// This very call tried it.
    Attempted,
    /// Both.
    AttemptedAndEjected,
}

impl Exclusion {
    #[inline]
    fn is_ejected(self) -> bool {
        matches!(self, Self::Ejected | Self::AttemptedAndEjected)
    }
}

/// One endpoint as a pick sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredEndpoint {
    /// The endpoint.
    pub index: u32,
    /// Its weight.
    pub weight: u32,
    /// This client's calls under way there.
    pub outstanding: u32,
    /// What speaks against it.
    pub exclusion: Exclusion,
    /// Whether so many are avoided that penalties for answers do not count.
    pub panic: bool,
    /// Its score in 2^-[`SCORE_BITS`] requests on an ordinary endpoint; 0 where the policy has none.
    pub score: i64,
}

/// Sees what a pick considered; `()` does not look, and costs nothing.
pub trait PickTracer {
    /// A candidate that the pick looked at, in order.
    #[inline]
    fn record_candidate(&mut self, _standing: &ScoredEndpoint) {}
}

impl PickTracer for () {}

/// Picks an endpoint by the contest's rule, or `None` from an empty group.
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
        // Whether this is a panic is known before the draw, and not only where somebody avoided was drawn: these take their
        // turns, or the best of all. It costs a look at all of them only while failures are held against many.
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
    /// Up to [`FULL_SCAN_MAX`] endpoints: the best of all. Else two different ones are drawn by weight and the second wins
    /// only if it is strictly better (ServiceRouter §3.4, §3.4.2); where both are handicapped, the best of all. Equals share by weight.
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

    /// How the endpoint at `position` of the group stands.
    #[inline]
    fn score_position(&self, candidates: &Candidates<'_>, position: usize) -> ScoredEndpoint {
        self.score_endpoint(candidates.indices()[position], candidates.weight(position))
    }

    /// How an endpoint stands.
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

    /// Whether an endpoint with failures is avoided, and what its score is raised by: one that returns from that counts as if
    /// up to one more request were there, which falls by and by.
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

    /// Whether more of the group are avoided for how they answer than the rule allows.
    #[inline]
    fn is_panic(&self, candidates: &Candidates<'_>) -> bool {
        match self.stats.suspects() {
            0 => false,
            suspects => self.is_panic_among(candidates, suspects),
        }
    }

    /// The same where failures are held against so many. Looks through the group only where these could be too many of it.
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

    /// Whether `a` is strictly better than `b`: less handicap, then less load as the policy has it.
    #[inline]
    fn is_better(&self, a: &ScoredEndpoint, b: &ScoredEndpoint) -> bool {
        if a.exclusion != b.exclusion {
            return a.exclusion < b.exclusion;
        }
        match self.pick_config.policy {
            // Without the call to come: with it, of two idle endpoints the stronger would always win, on top of being
            // drawn more often, and a client with few calls would starve the weaker one.
            // a/v < b/w as a*w < b*v: exact, and below 2^64 since each factor is below 2^32.
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

    /// The best of all by position; among equals each wins by its weight (reservoir sampling: the one at hand replaces
    /// the one kept when `below(weights of the equal_weight so far, its own included)` is less than its weight).
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

    /// The same, kept out of the way of calls that need it seldom.
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
