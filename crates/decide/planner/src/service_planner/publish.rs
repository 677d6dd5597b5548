//! From a plan to the tables that are written, and their confirmation.

use fairmesh_model::{Confirmation, RegionTable, TableOrigin, TrafficMode};

use super::{ServicePlanner, TableWrite};
use crate::{Now, facts::ServiceFacts};

/// How often tables are confirmed: routers stop to obey their dropped shares after 60 s without it.
const CONFIRM_INTERVAL_MS: u64 = 20_000;

impl ServicePlanner {
    /// Notes that the last writes were made.
    pub fn written(&mut self, facts: &ServiceFacts, writes: &[TableWrite], now: Now) {
        let tables = writes.iter().filter(|write| write.table.is_some()).count();
        let all = match facts.traffic.mode {
            // All that there are, whatever the regions are by now.
            TrafficMode::Hold => 1,
            _ => self.regions.len(),
        };
        if tables > 0 && tables >= all {
            self.confirmed_at_ms = Some(now.ms);
        }
    }

    /// The tables that differ from those in force, or all of them when they are to be confirmed.
    pub(super) fn publish(&self, facts: &ServiceFacts, now: Now) -> Vec<TableWrite> {
        let is_due = self.is_confirmation_due(now);
        let confirmation = Confirmation { round: self.round, at_ms: now.wall_ms };
        let wanted = self.shares().filter_map(|(from, shares)| {
            let stored = facts.tables.get(from);
            let zones = self.zone_shares(from);
            let is_same = stored.is_some_and(|stored| {
                stored.table.shares == shares
                    && stored.table.zones == zones
                    && stored.table.origin != TableOrigin::ByHand
            });
            let table = RegionTable { shares, zones, origin: TableOrigin::Planned(confirmation) };
            let replaces = stored.map(|stored| stored.revision);
            (is_due || !is_same).then(|| TableWrite { from: from.clone(), table: Some(table), replaces })
        });
        let gone = facts.tables.iter().filter(|(from, _)| !self.regions.contains(from));
        let gone = gone.map(|(from, stored)| TableWrite {
            from: from.clone(),
            table: None,
            replaces: Some(stored.revision),
        });
        wanted.chain(gone).collect()
    }

    /// Confirms the planned tables in force as they are: a person stands by them.
    pub(super) fn confirm_held(&mut self, facts: &ServiceFacts, now: Now) -> Vec<TableWrite> {
        if !self.is_confirmation_due(now) {
            return Vec::new();
        }
        self.round += 1;
        let origin = TableOrigin::Planned(Confirmation { round: self.round, at_ms: now.wall_ms });
        let planned = facts.tables.iter().filter(|(_, stored)| stored.table.origin != TableOrigin::ByHand);
        let confirmed = planned.map(|(from, stored)| TableWrite {
            from: from.clone(),
            table: Some(RegionTable { origin, ..stored.table.clone() }),
            replaces: Some(stored.revision),
        });
        confirmed.collect()
    }

    pub(super) fn is_confirmation_due(&self, now: Now) -> bool {
        self.confirmed_at_ms.is_none_or(|at| now.ms.saturating_sub(at) >= CONFIRM_INTERVAL_MS)
    }
}
