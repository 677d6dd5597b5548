//! Drains of whole regions, as far as one service takes part in them.

use fairmesh_model::{Region, RegionDrain, Share, TrafficMode};
use fairmesh_te::{
    PlanInput, Tables, WHOLE,
    drain::{self, Drain, Forecast, Step},
};

use super::ServicePlanner;
use crate::{
    Now,
    facts::{ServiceFacts, TopologyFacts},
    table_conversion::from_stored,
};

/// What may be left at home of a step that is made, in the tables: shares are rounded.
const TABLE_TOLERANCE: f64 = 0.015;
/// The same in reports, which are of another second than the tables: half a step, or the step before would do as well.
const REPORT_TOLERANCE: f64 = drain::STEP / 2.0;
/// Below this number of calls per second a share of them says nothing: a step moves not even one call every other second.
const FEW_CALLS: f64 = 5.0;

/// Whether the next step of a drain may be made.
#[derive(Clone, Debug, PartialEq)]
pub enum DrainStep {
    /// The region keeps this share from now on.
    Advance(Share),
    /// The step before is not seen yet.
    Wait(String),
    /// It is too early.
    NotDue,
    /// It may never be made by itself.
    Hold(String),
}

impl ServicePlanner {
    /// The next step as far as this service is concerned; `None` if it has nothing in the region, or nothing that a table
    /// moves.
    pub fn drain_step(
        &self,
        facts: &ServiceFacts,
        topology: &TopologyFacts,
        (region, drained): (&Region, &RegionDrain),
        now: Now,
    ) -> Option<DrainStep> {
        let at = self.drained_region(facts, region)?;
        if let Some(why) = self.holds_drains(facts) {
            return Some(DrainStep::Hold(why));
        }
        let keep = f64::from(drained.keep.millionths()) / 1e6;
        if !drained.returns && !self.is_in_tables(facts, at, keep) {
            // Tables that keep more than the step, since calls would be dropped otherwise, do not reach it by themselves.
            let next = self.next_step(facts, topology, (at, drained), now);
            return Some(match next {
                DrainStep::Hold(_) if !drained.is_done() => next,
                _ => DrainStep::Wait("tables to reach the present step".to_owned()),
            });
        }
        // Calls of shards without a copy elsewhere stay, however many these are.
        let has_lone_shards = facts.lone_shards.share(region) > 0.0;
        let staying = self.staying(region).filter(|staying| *staying > keep + REPORT_TOLERANCE);
        if let (Some(staying), false) = (staying, drained.returns || has_lone_shards) {
            let percent = staying * 100.0;
            return Some(DrainStep::Wait(format!("reports, by which {percent:.0} % of calls still stay,")));
        }
        if drained.is_done() {
            return Some(match drained.returns && self.coming_home.contains(region) {
                true => DrainStep::Wait("calls to come home at their pace".to_owned()),
                false => DrainStep::Advance(drained.keep),
            });
        }
        Some(self.next_step(facts, topology, (at, drained), now))
    }

    /// The next step by the loads that it would lead to.
    fn next_step(
        &self,
        facts: &ServiceFacts,
        topology: &TopologyFacts,
        (at, drained): (usize, &RegionDrain),
        now: Now,
    ) -> DrainStep {
        let elapsed = now.wall_ms.saturating_sub(drained.began_at_ms);
        let drain = Drain {
            region: at,
            from_ms: now.ms.saturating_sub(elapsed),
            over_ms: u64::try_from(drained.over.as_millis()).unwrap_or(u64::MAX),
            keep: f64::from(drained.keep.millionths()) / 1e6,
            goal: if drained.returns { 1.0 } else { 0.0 },
        };
        let step = self.with_input(facts, topology, now.ms, |input| drain::step(&drain, input, &self.state));
        match step {
            Step::Advance(keep) => DrainStep::Advance(share(keep)),
            Step::Done => DrainStep::Advance(drained.keep),
            Step::Wait => DrainStep::NotDue,
            Step::HoldFor(full) => {
                DrainStep::Hold(format!("region {} would come to its last threshold", self.regions[full]))
            }
            Step::HoldDropping if drained.returns => {
                DrainStep::Hold("its servers have no room for further calls".to_owned())
            }
            Step::HoldDropping => DrainStep::Hold("no other region may take its calls".to_owned()),
            Step::HoldSince(refusal) => DrainStep::Hold(self.refusal_text(&refusal)),
        }
    }

    /// Why no step of any drain is made as things are, whatever the loads.
    pub fn holds_drains(&self, facts: &ServiceFacts) -> Option<String> {
        match facts.traffic.mode {
            TrafficMode::Hold => Some("its policy holds the tables (mode: hold)".to_owned()),
            _ => self.refused.as_ref().map(|refused| refused.text.clone()),
        }
    }

    /// What a drain of a region would lead to, by the positions of `regions`; `None` as for [`Self::drain_step`].
    ///
    /// # Errors
    /// Why nothing can be foretold.
    pub fn forecast(
        &self,
        facts: &ServiceFacts,
        topology: &TopologyFacts,
        region: &Region,
        now_ms: u64,
    ) -> Option<Result<Forecast, String>> {
        let at = self.drained_region(facts, region)?;
        let forecast = self.with_input(facts, topology, now_ms, |input| {
            let mut observation = input.observation.clone();
            if let Some(callers) = &mut observation.regions[at].callers {
                // As if all shards had the same calls. Plans do not know of it: a table would keep calls of others, too.
                callers.pinned = facts.lone_shards.share(region);
            }
            drain::forecast(PlanInput { observation: &observation, ..input }, &self.state, at, 0.0)
        });
        Some(forecast.map_err(|refusal| self.refusal_text(&refusal)))
    }

    /// The position of a region from which tables move calls.
    fn drained_region(&self, facts: &ServiceFacts, region: &Region) -> Option<usize> {
        let moves = !facts.local_only && facts.traffic.mode != TrafficMode::Shadow;
        self.regions.iter().position(|known| known == region).filter(|_| moves)
    }

    /// Whether the tables in force keep no more of the region's calls at home, and send it none of others. A plan of this round
    /// that differs, as demand does from one second to the next, moves no call yet and says nothing.
    fn is_in_tables(&self, facts: &ServiceFacts, at: usize, keep: f64) -> bool {
        if !facts.tables.contains_key(&self.regions[at]) {
            return false;
        }
        let in_force = from_stored(&facts.tables, &self.regions, &self.classes);
        if keep < 1.0 && self.others_send_to(&in_force, at) {
            return false;
        }
        // Of a class without calls there is nothing to move.
        let table = in_force.sources[at].classes.iter().enumerate();
        let called = table.filter(|(class, _)| self.state.has_calls(at, *class));
        let home = called.map(|(_, class)| f64::from(class.shares[at]) / f64::from(WHOLE));
        home.fold(0.0, f64::max) <= keep + TABLE_TOLERANCE
    }

    /// Whether tables in force send callers of other regions to one: a plan that could not be written moves no call.
    fn others_send_to(&self, in_force: &Tables, to: usize) -> bool {
        let others = in_force.sources.iter().enumerate().filter(|(source, _)| *source != to);
        others
            .flat_map(|(source, table)| table.classes.iter().enumerate().map(move |row| (source, row)))
            .any(|(source, (class, row))| self.state.has_calls(source, class) && row.shares[to] > 0)
    }

    /// The share of their calls that callers in a region report to stay there; `None` of too few calls.
    fn staying(&self, region: &Region) -> Option<f64> {
        let (_, rates) = self.known.get(region)?.callers.as_ref()?;
        let all: f64 = rates.sent.iter().map(|(_, sent)| sent).sum();
        (all >= FEW_CALLS).then(|| rates.sent_to(region) / all)
    }
}

/// A part of one as a share.
fn share(part: f64) -> Share {
    // In bounds, since it is clamped.
    Share::of_millionths((part.clamp(0.0, 1.0) * 1e6).round() as u32).unwrap_or(Share::ALL)
}
