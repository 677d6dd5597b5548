use super::{
    Candidates, Exclusion, Generator, LoadEstimate, PickContext, PickTracer, ScoredEndpoint, UNIT_COST,
    decay, fade_cost,
};
use crate::endpoint_stats::HotStats;

/// Fractional bits of a score: the sum of those of a load and of a cost.
pub const SCORE_BITS: u32 = LoadEstimate::BITS + LoadEstimate::COST_BITS;
/// Maximum cost of the next call. With this limit, the worse of two idle endpoints keeps some of the calls for which it
/// is drawn first, so that new reports from it arrive.
const MAX_NEXT_CALL_COST: u32 = (7 << LoadEstimate::COST_BITS) / 4;

impl PickContext<'_> {
    /// Power of two choices: two different endpoints are drawn by weight (ServiceRouter §3.4, §3.4.2). The second wins
    /// if `second.score + random fraction of a request < first.score`. A lead of one request decides, and a lead of a
    /// tenth moves a tenth of the calls. Small and late differences therefore shift shares smoothly instead of sending
    /// all calls to one endpoint, and without differences shares follow the weights.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `score_endpoint`")]
    pub(super) fn p2c_by_score<W: PickTracer>(
        &self,
        candidates: &Candidates<'_>,
        random: &mut Generator,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        if candidates.len() < 2 {
            let only = (!candidates.is_empty()).then(|| self.score_position(candidates, 0));
            only.iter().for_each(|only| tracer.record_candidate(only));
            return only;
        }
        let first = candidates.sample(random);
        let second = candidates.sample_excluding(first, random);
        let (a, b) = (self.score_position(candidates, first), self.score_position(candidates, second));
        tracer.record_candidate(&a);
        tracer.record_candidate(&b);
        if a.exclusion.is_ejected() || b.exclusion.is_ejected() {
            return self.p2c_with_ejected((first, second), candidates, random, tracer);
        }
        let winner = if self.second_wins(&b, &a, random) { b } else { a };
        if winner.exclusion == Exclusion::None {
            return Some(winner);
        }
        self.p2c_among_least_excluded(candidates, random, tracer)
    }

    /// Picks if one of the two drawn endpoints is ejected, which may mean panic. Both are scored again: passing scores
    /// to this function would place them in memory in every other pick too.
    #[cold]
    fn p2c_with_ejected<W: PickTracer>(
        &self,
        (first, second): (usize, usize),
        candidates: &Candidates<'_>,
        random: &mut Generator,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        if self.is_panic(candidates) {
            let in_panic = PickContext { panic: true, ..*self };
            return in_panic.p2c_among_least_excluded(candidates, random, tracer);
        }
        let (a, b) = (self.score_position(candidates, first), self.score_position(candidates, second));
        let winner = if self.second_wins(&b, &a, random) { b } else { a };
        match winner.exclusion {
            Exclusion::None => Some(winner),
            _ => self.p2c_among_least_excluded(candidates, random, tracer),
        }
    }

    /// Whether the second endpoint wins. Returning the winner itself would select between two memory locations and
    /// copy from there.
    #[inline]
    fn second_wins(&self, second: &ScoredEndpoint, first: &ScoredEndpoint, random: &mut Generator) -> bool {
        let fraction = (random.next() >> (64 - SCORE_BITS)) as i64;
        match second.exclusion.cmp(&first.exclusion) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => second.score + fraction < first.score,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Picks among the endpoints with the least exclusion. Always taking the best of them was rejected: after many
    /// failures, all callers would pick the same endpoint.
    #[cold]
    fn p2c_among_least_excluded<W: PickTracer>(
        &self,
        candidates: &Candidates<'_>,
        random: &mut Generator,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        let all = || (0..candidates.len()).map(|position| self.score_position(candidates, position));
        all().for_each(|scored| tracer.record_candidate(&scored));
        let least_excluded = all().map(|scored| scored.exclusion).min()?;
        let pool = || all().filter(|scored| scored.exclusion == least_excluded);
        let total: u64 = pool().map(|scored| u64::from(scored.weight)).sum();
        let a = at_weight(pool(), random.below(total))?;
        let others = || pool().filter(|scored| scored.index != a.index);
        let b = at_weight(others(), random.below(total - u64::from(a.weight)));
        Some(b.filter(|b| self.second_wins(b, &a, random)).unwrap_or(a))
    }

    /// The load in front of a call, in 2^-18 requests on an ordinary endpoint. This client's calls in flight divided by
    /// the weight, plus the next call, are multiplied by the cost of a call at the endpoint. The excess load of other
    /// callers is added, decayed by the time since the last report (Uber, assisted balancing).
    ///
    /// The age counts from the last report rather than the last pick. Otherwise the last report of a server that
    /// stopped reporting would stay valid as long as calls go there. The next call is not divided by the weight, since
    /// endpoints are already drawn by weight.
    #[inline]
    pub(super) fn load_score(&self, hot: &HotStats, load: LoadEstimate) -> i64 {
        let age = hot.age(self.pick_config.tick(self.now));
        let mut cost = u32::from(load.cost);
        if age > self.pick_config.memory {
            let shift = UNIT_COST.ilog2() - LoadEstimate::COST_BITS;
            cost = fade_cost(cost << shift, age, self.pick_config.memory) >> shift;
        }
        let calls = (hot.own_load() * u64::from(load.weight_ratio)) >> LoadEstimate::WEIGHT_RATIO_BITS;
        let own = calls * u64::from(cost) + (u64::from(cost.min(MAX_NEXT_CALL_COST)) << LoadEstimate::BITS);
        own as i64 + (decay(load.excess.into(), age) << LoadEstimate::COST_BITS)
    }

    /// The latency multiplied by the number of calls that would be in flight, divided by the weight. An endpoint
    /// without recent responses counts as fast, so that it is measured again, but its latency counts as at least a
    /// quarter of the mean. Otherwise a server that never responds would get all calls.
    #[inline]
    pub(super) fn latency_score(&self, hot: &HotStats, load: LoadEstimate) -> i64 {
        let usual = self.stats.pool_means.others() as i64;
        let latency = decay(load.excess.into(), hot.age(self.pick_config.tick(self.now))).max(usual / 4);
        let calls = (hot.own_load() + (1 << LoadEstimate::BITS)) * u64::from(load.weight_ratio);
        i64::try_from(calls).map_or(i64::MAX, |calls| calls.saturating_mul(latency))
    }
}

/// Returns the endpoint whose interval of the cumulative weights contains `point`.
fn at_weight(mut scored: impl Iterator<Item = ScoredEndpoint>, point: u64) -> Option<ScoredEndpoint> {
    let mut end = 0;
    scored.find(|scored| {
        end += u64::from(scored.weight);
        point < end
    })
}
