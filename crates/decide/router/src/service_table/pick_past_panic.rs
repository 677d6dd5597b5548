//! If most endpoints of the nearest ring are ejected, further rings take a share of its calls.

use fairmesh_balancer::{CandidateSet, Candidates, Exclusion, ScoredEndpoint, pick};
use fairmesh_model::{
    ALL_CALLS, ServingPower,
    arith::{Generator, mix_pair},
};

use super::{
    ServiceTable, Tier,
    decide::{AttemptParams, BestCandidate},
};
use crate::{EndpointPick, decision_trace::DecisionTracer};

/// Salt that makes the draw whether a call stays independent of other uses of the seed: the bytes of `stays`.
const STAY_SALT: u64 = 0x0073_7461_7973;

impl ServiceTable {
    /// Divides calls between the unejected endpoints of the nearest ring, by their capacity, and a further ring that
    /// serves and is not in panic. Returns `None` if no further ring can serve, so that panic mode applies.
    #[cold]
    pub(super) fn pick_past_panic<W: DecisionTracer>(
        &self,
        nearest: &Tier<CandidateSet>,
        further: &[Tier<CandidateSet>],
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> Option<EndpointPick> {
        for tier in further.iter().take_while(|tier| tier.rank < self.last_resort) {
            let elsewhere =
                pick(&tier.candidates.as_candidates(), &attempt.context, &mut attempt.random, &mut ());
            let Some(elsewhere) =
                elsewhere.filter(|scored| scored.exclusion == Exclusion::None && !scored.panic)
            else {
                continue;
            };
            if let Some(stays) = self.pick_unejected(&nearest.candidates.as_candidates(), attempt, tracer) {
                return Some(self.to_pick(&stays, nearest.rank, None, tracer));
            }
            tracer.record_step("draw", || {
                let to = self.locality.describe(tier.rank);
                format!("more than the others can carry is ejected there: to {to}")
            });
            tracer.record_candidate(&elsewhere);
            return Some(self.to_pick(&elsewhere, tier.rank, None, tracer));
        }
        None
    }

    /// Draws whether the call stays, by the capacity of the unejected candidates, and then picks among them.
    pub(super) fn pick_unejected<W: DecisionTracer>(
        &self,
        candidates: &Candidates<'_>,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        let able = attempt.context.unejected(candidates);
        let carries = ServingPower { all: ALL_CALLS.into(), able: able.into() }.carries();
        let seed = mix_pair(attempt.params.call_seed, STAY_SALT);
        if Generator::new(seed).below(ALL_CALLS.into()) >= u64::from(carries) {
            return None;
        }
        let context = attempt.context.keeping_ejections();
        let scored = pick(candidates, &context, &mut attempt.random, tracer)?;
        (scored.exclusion == Exclusion::None).then_some(scored)
    }
}

impl BestCandidate {
    /// Whether a candidate was found, but only in panic.
    pub(super) fn is_panic(&self) -> bool {
        self.scored.exclusion == Exclusion::None && self.scored.panic
    }
}
