//! Zones of the caller's region, for region tables that divide the calls staying in it.

use fairmesh_balancer::{CandidateSet, pick};
use fairmesh_model::Zone;

use super::{
    ServiceTable, Tier,
    decide::{AttemptParams, BestCandidate},
    region_table::CallDraws,
};
use crate::{EndpointPick, decision_trace::DecisionTracer};

/// The zones used by callers in one zone.
#[derive(Debug)]
pub(super) struct CompiledZones {
    /// Position of the caller's region in its table.
    pub(super) region: u8,
    /// For each zone, its position and its share in millionths.
    pub(super) shares: Box<[(u8, u32)]>,
    /// Zones with serving endpoints, with this client's subset in each.
    pub(super) zones: Box<[(Zone, Tier<CandidateSet>)]>,
}

impl ServiceTable {
    /// The caller's zone, if calls prefer it.
    pub fn zone_first(&self) -> Option<&Zone> {
        self.locality.zone()
    }

    /// Draws the zone of the call and picks there. Returns `None` if no endpoint of the zone can serve, so that the
    /// whole region is used.
    pub(super) fn pick_in_zone<W: DecisionTracer>(
        &self,
        zones: &CompiledZones,
        draws: &mut CallDraws,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> Option<EndpointPick> {
        let (zone, tier) = &zones.zones[usize::from(draws.position(&zones.shares, |_| true)?)];
        tracer.record_step("draw", || format!("to zone {zone}"));
        self.trace_subset(tier, tracer);
        let scored = pick(&tier.candidates.as_candidates(), &attempt.context, &mut attempt.random, tracer);
        let mut best = None;
        if BestCandidate::offer(&mut best, scored, tier.rank)
            && let Some(picked) = &best
        {
            return Some(self.to_pick(&picked.scored, picked.rank, None, tracer));
        }
        tracer.record_step("draw", || "no endpoint can serve there: any zone of the region".to_owned());
        None
    }
}
