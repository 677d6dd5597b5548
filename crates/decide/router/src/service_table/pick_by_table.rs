use fairmesh_balancer::{Exclusion, InlineCandidates, pick};
use fairmesh_model::arith::hash_key;

use super::{
    ServiceTable, Sharding,
    decide::{AttemptParams, BestCandidate},
    region_table::{CallDraws, ClassShares, CompiledTable, RegionEndpoints, TableRegion},
};
use crate::{EndpointPick, PickError, decision_trace::DecisionTracer, service_table::Selection};

/// The choice made by the table.
enum TableChoice {
    /// An endpoint without an exclusion.
    Picked(EndpointPick),
    /// No endpoint in the call's region can serve, so rings decide. Holds the best excluded endpoint, if any.
    Rings(Option<BestCandidate>),
}

impl ServiceTable {
    /// Draws the region of the call and picks there. If no endpoint there can serve, rings decide.
    #[inline(never)]
    pub(super) fn pick_by_table<W: DecisionTracer>(
        &self,
        table: &CompiledTable,
        mut attempt: AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        self.trace_regions(tracer);
        let class = attempt.params.class;
        let Some(shares) = table.shares(class) else {
            tracer.record_step("table", || table.describe_absence(class));
            return self.pick_by_rings(None, attempt, tracer);
        };
        tracer.record_step("table", || table.describe(class, shares, self.zone_first()));
        let mut draws = CallDraws::new(attempt.params.call_seed);
        let is_dropped = draws.is_dropped(shares);
        // A call that has made an attempt is no longer dropped, since the cost of the attempt would be wasted.
        if is_dropped && !attempt.params.admitted {
            tracer.record_step("draw", || format!("in the {} that are dropped", shares.dropped));
            let region = self.home().clone();
            return Err(Box::new(PickError::Dropped { share: shares.dropped, region }));
        }
        let choice = match &self.selection {
            Selection::Sharded(None) => return Err(PickError::NoShardMap.into()),
            Selection::Sharded(Some(sharding)) => {
                self.pick_drawn_copy((table, shares, sharding), &mut draws, &mut attempt, tracer)?
            }
            selection => {
                let region = match selection {
                    Selection::Hashed(_) => {
                        let key = attempt.params.key.ok_or(PickError::KeyMissing)?;
                        table.region_of_key(shares, hash_key(key.0))
                    }
                    _ => draws.region(shares, |_| true),
                };
                let zones = table.zones.as_deref().filter(|zones| region == Some(zones.region));
                if let Some(zones) = zones
                    && let Some(picked) = self.pick_in_zone(zones, &mut draws, &mut attempt, tracer)
                {
                    return Ok(picked);
                }
                match self.pick_drawn(table, region, &mut attempt, tracer) {
                    TableChoice::Rings(best) => {
                        self.pick_spare((table, region, best), &mut draws, &mut attempt, tracer)
                    }
                    picked => picked,
                }
            }
        };
        match choice {
            TableChoice::Picked(picked) => Ok(picked),
            TableChoice::Rings(best) => {
                tracer.record_step("draw", || "no endpoint can serve there: rings decide".to_owned());
                self.pick_by_rings(best, attempt, tracer)
            }
        }
    }

    /// Picks in the drawn region.
    #[inline]
    fn pick_drawn<W: DecisionTracer>(
        &self,
        table: &CompiledTable,
        region: Option<u8>,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> TableChoice {
        let Some(region) = region.map(|region| &table.regions[usize::from(region)]) else {
            tracer.record_step("draw", || "no region of the table may be used".to_owned());
            return TableChoice::Rings(None);
        };
        tracer.record_step("draw", || format!("to {}", region.name));
        self.pick_in_region(region, None, attempt, tracer)
    }

    /// Picks in a region. `best` is the best candidate so far.
    #[inline]
    fn pick_in_region<W: DecisionTracer>(
        &self,
        region: &TableRegion,
        mut best: Option<BestCandidate>,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> TableChoice {
        let scored = match &region.endpoints {
            RegionEndpoints::Replicated(tier) => {
                self.trace_subset(tier, tracer);
                let candidates = tier.candidates.as_candidates();
                let scored = pick(&candidates, &attempt.context, &mut attempt.random, tracer);
                match scored.filter(|scored| scored.panic) {
                    Some(panicked) => self.pick_unejected(&candidates, attempt, tracer).or(Some(panicked)),
                    None => scored,
                }
            }
            RegionEndpoints::Hashed(tier) => self.pick_hashed(tier, attempt, tracer),
            RegionEndpoints::Sharded => None,
        };
        if BestCandidate::offer(&mut best, scored, region.rank)
            && let Some(picked) = &best
        {
            return TableChoice::Picked(self.to_pick(&picked.scored, picked.rank, None, tracer));
        }
        TableChoice::Rings(best)
    }

    /// Picks in another region by the planner's spare shares if the drawn region is lost: no endpoint there serves, or
    /// all endpoints that this call has not tried are ejected. If only this call failed there, the nearest ring is a
    /// better choice.
    #[cold]
    fn pick_spare<W: DecisionTracer>(
        &self,
        (table, lost, best): (&CompiledTable, Option<u8>, Option<BestCandidate>),
        draws: &mut CallDraws,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> TableChoice {
        let is_lost = best.as_ref().is_none_or(|best| best.scored.exclusion != Exclusion::Attempted);
        let Some((spare, lost)) = table.spare.as_deref().zip(lost).filter(|_| is_lost) else {
            return TableChoice::Rings(best);
        };
        let lost = &table.regions[usize::from(lost)].name;
        let key = attempt.params.key.filter(|_| matches!(self.selection, Selection::Hashed(_)));
        let Some(region) = spare.draw(lost, key.map(|key| hash_key(key.0)), draws) else {
            return TableChoice::Rings(best);
        };
        tracer.record_step("draw", || {
            format!("no endpoint can serve in {lost}: to {}, by the power of all other regions", region.name)
        });
        self.pick_in_region(region, best, attempt, tracer)
    }

    /// Picks a copy of the key's shard, in a region drawn among the regions that have a copy.
    fn pick_drawn_copy<W: DecisionTracer>(
        &self,
        (table, shares, sharding): (&CompiledTable, &ClassShares, &Sharding),
        draws: &mut CallDraws,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<TableChoice, Box<PickError>> {
        let copies = self.locate(sharding, attempt.params, tracer)?;
        let region_of = |index, rank| {
            let region = table.region_of(index)?;
            (table.regions[usize::from(region)].rank == rank).then_some(region)
        };
        let mut holding: u64 = 0;
        copies.visit(sharding, |holder| {
            // Tables have at most 64 regions.
            holding |= region_of(holder.index, holder.rank).map_or(0, |region| 1 << region);
        });
        let Some(region) = draws.region(shares, |region| holding >> region & 1 == 1) else {
            tracer.record_step("draw", || "no region of the table holds a copy".to_owned());
            return Ok(TableChoice::Rings(None));
        };
        let TableRegion { name, rank, .. } = &table.regions[usize::from(region)];
        tracer.record_step("draw", || format!("to {name}, among the regions that hold a copy"));
        let mut inline = InlineCandidates::new();
        copies.collect(sharding, &mut inline, |holder| region_of(holder.index, holder.rank) == Some(region));
        let scored = pick(&inline.as_candidates(), &attempt.context, &mut attempt.random, tracer);
        let mut best = None;
        if BestCandidate::offer(&mut best, scored, *rank)
            && let Some(BestCandidate { scored, rank }) = &best
        {
            let shard = Some((copies.shard(), sharding.shards.version()));
            return Ok(TableChoice::Picked(self.to_pick(scored, *rank, shard, tracer)));
        }
        Ok(TableChoice::Rings(best))
    }
}
