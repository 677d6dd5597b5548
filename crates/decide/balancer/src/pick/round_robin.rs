use super::{Candidates, Exclusion, GAMMA, Generator, PickContext, PickTracer, ScoredEndpoint};

impl PickContext<'_> {
    /// Weighted round robin that skips excluded endpoints.
    ///
    /// With equal weights, the position is `counter mod n`. Otherwise it is where `counter * GAMMA` (wrapping), as a
    /// fraction of 2^64, falls within the cumulative weights. Steps of the golden ratio reach every endpoint in
    /// proportion to its weight, as evenly as possible, with no state but the counter. Callers start at different
    /// counters; otherwise all would move in step.
    pub(super) fn round_robin<W: PickTracer>(
        &self,
        candidates: &Candidates<'_>,
        random: &mut Generator,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        if candidates.is_empty() {
            return None;
        }
        let first = candidates.round_robin_position(self.stats.round_robin_counter(), GAMMA);
        for step in 0..candidates.len() {
            let scored = self.score_position(candidates, (first + step) % candidates.len());
            tracer.record_candidate(&scored);
            if scored.exclusion == Exclusion::None {
                return Some(scored);
            }
        }
        self.best_candidate(candidates, random, tracer)
    }
}
