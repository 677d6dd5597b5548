use super::{Candidates, Exclusion, GAMMA, Generator, PickContext, PickTracer, ScoredEndpoint};

impl PickContext<'_> {
    /// In turn, by weight, skipping those that something speaks against.
    ///
    /// Equal weights: position `round_robin mod n`. Else `round_robin * GAMMA` (wrapping), as a fraction of 2^64, of the running totals:
    /// steps of the golden ratio come to every endpoint in proportion to its weight and as evenly spread as can be, and
    /// need no state but the turn. Callers begin at turns of their own, or all would move in step.
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
