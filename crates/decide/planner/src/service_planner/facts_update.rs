//! What a planner takes over from facts before it plans: reports, regions, classes, and the tables in force.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::{Confirmation, Region, TableOrigin, TrafficMode};
use fairmesh_te::{PlannerState, ServerReport};

use super::ServicePlanner;
use crate::{facts::ServiceFacts, table_conversion::from_stored};

/// How long a region stays in the tables that has neither endpoints nor callers: as long as a table has force.
const FORGET_MS: u64 = 15 * 60_000;

impl ServicePlanner {
    /// Takes over the reports of the facts.
    pub(super) fn learn(&mut self, facts: &ServiceFacts, now_ms: u64) {
        let calling = facts.reports.calls.iter().map(|(path, _)| &path.from);
        let serving = facts.endpoints.iter().filter(|(_, endpoints)| endpoints.serving() > 0);
        let regions: BTreeSet<&Region> = serving.map(|(region, _)| region).chain(calling).collect();
        for region in regions {
            self.known.entry(region.clone()).or_default().used_ms = now_ms;
        }
        // What is known of a region that is gone is by the classes before.
        let has_new_classes = self.classes != facts.traffic.classes;
        self.known.retain(|_, known| {
            let unused_ms = now_ms.saturating_sub(known.used_ms);
            unused_ms < FORGET_MS && !(has_new_classes && unused_ms > 0)
        });
        if self.load != facts.traffic.load {
            // Another measure: what the one before said is no value of it.
            self.load.clone_from(&facts.traffic.load);
            self.known.values_mut().for_each(|known| known.servers = None);
            self.state = std::mem::replace(&mut self.state, PlannerState::new(0, 1)).without_work();
        }
        for (region, known) in &mut self.known {
            if let Some((load, received)) = facts.servers_in(region) {
                let at_ms = before(facts.reports.at_ms, facts.age_of_servers(region));
                let response_time = facts.response_time(region, region).unwrap_or_default().as_secs_f64();
                let (answered, failing) = (facts.answered_in(region), facts.failing_in(region));
                let spread = facts.spread_in(region);
                known.servers =
                    Some(ServerReport { at_ms, load, received, answered, failing, spread, response_time });
            }
            if let Some(callers) = facts.callers_in(region) {
                known.callers = Some((before(facts.reports.at_ms, facts.age_of_callers(region)), callers));
            }
        }
    }

    /// Takes over the present regions and classes, and keeps the state of regions and classes that stay.
    pub(super) fn adopt_regions(&mut self, facts: &ServiceFacts, now_ms: u64) {
        let regions: Vec<Region> = self.known.keys().cloned().collect();
        let classes = &facts.traffic.classes;
        if self.planned_at_ms.is_none() || self.classes != *classes {
            // Rounds continue where a control plane before this one, or this one with other classes, has stopped.
            let rounds = facts.tables.values().filter_map(|stored| match stored.table.origin {
                TableOrigin::Planned(Confirmation { round, .. }) => Some(round),
                TableOrigin::ByHand => None,
            });
            self.round = self.round.max(rounds.max().unwrap_or_default());
            self.state =
                PlannerState::resumed(from_stored(&facts.tables, &regions, classes), classes.len() + 1);
            self.classes.clone_from(classes);
            self.resume_subsets(facts.planned_tables().map(|(_, stored)| &stored.table), now_ms);
        } else if self.regions != regions {
            let position = |region: &Region| self.regions.iter().position(|known| known == region);
            let from: Vec<Option<usize>> = regions.iter().map(position).collect();
            self.state = self.state.remapped(&from);
        }
        if self.regions != regions {
            self.predicted.clear();
        }
        self.regions = regions;
        self.adopt_tables(facts);
    }

    /// Continues from the tables in force, if they are others than this planner made: its write failed, or another writer
    /// was faster. In shadow mode there are none.
    fn adopt_tables(&mut self, facts: &ServiceFacts) {
        if facts.traffic.mode == TrafficMode::Shadow {
            return;
        }
        let in_force = from_stored(&facts.tables, &self.regions, &self.classes);
        if *self.state.tables() != in_force {
            self.state = std::mem::replace(&mut self.state, PlannerState::new(0, 1)).with_tables(in_force);
        }
    }
}

/// When data of this age was counted.
fn before(now_ms: u64, age: Duration) -> u64 {
    now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}
