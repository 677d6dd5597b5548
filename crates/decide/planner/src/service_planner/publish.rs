//! From a plan to the tables that are written, and their confirmation.

use std::collections::BTreeSet;

use fairmesh_model::{
    Confirmation, Region, RegionTable, ServiceName, TableOrigin, TrafficMode, arith::hash_text,
};

use super::{ServicePlanner, TableWrite};
use crate::{Now, facts::ServiceFacts};

/// How often tables are confirmed. Without it they lose their force after 15 min, so a control plane that takes over has ten
/// minutes. Confirmations of 50,000 tables are 208 writes per second, spread by service.
///
/// One record that confirms all tables was rejected: routers of the release before do not know it, and for them each table would
/// have to be confirmed as well. Nor is it needed where all 50,000 tables drop calls: that is 2,500 records per second in 50 batches, by
/// service, and a control plane writes 363 batches of more bytes in a second (`bench/run rib`).
const CONFIRM_INTERVAL_MS: u64 = 240_000;
/// The same for tables that drop calls: routers stop dropping calls 60 s after the last confirmation.
const CONFIRM_DROPS_INTERVAL_MS: u64 = 20_000;
/// A control plane that takes over confirms all tables within this time, since it does not know how old they are.
const TAKEOVER_MS: u64 = 60_000;

/// When the tables of a service are confirmed within [`CONFIRM_INTERVAL_MS`], so that those of many services are spread.
pub(super) fn phase_ms(service: &ServiceName) -> u64 {
    hash_text(&service.to_string()) % CONFIRM_INTERVAL_MS
}

impl ServicePlanner {
    /// Notes that the last writes were made.
    pub fn written(&mut self, facts: &ServiceFacts, writes: &[TableWrite], now: Now) {
        let written = writes.iter().filter(|write| write.table.is_some());
        let written: BTreeSet<&Region> = written.map(|write| &write.from).collect();
        if written.is_empty() {
            return;
        }
        // Tables in force, with whether they drop calls.
        let tables: Vec<(&Region, bool)> = match facts.traffic.mode {
            // All that there are, whatever the regions are by now.
            TrafficMode::Hold => {
                facts.planned_tables().map(|(from, stored)| (from, stored.table.shares.drops())).collect()
            }
            _ => {
                let drops = self
                    .state
                    .tables()
                    .sources
                    .iter()
                    .map(|table| table.classes.iter().any(|class| class.dropped > 0));
                self.regions.iter().zip(drops).collect()
            }
        };
        let is_written = |(from, _): &(&Region, bool)| written.contains(from);
        if tables.iter().all(is_written) {
            self.confirmed_at_ms = Some(now.ms);
        }
        if tables.iter().filter(|(_, drops)| *drops).all(is_written) {
            self.drops_confirmed_at_ms = Some(now.ms);
        }
    }

    /// The tables that differ from those in force or are to be confirmed.
    pub(super) fn publish(&self, facts: &ServiceFacts, now: Now) -> Vec<TableWrite> {
        let confirmation = Confirmation { round: self.round, at_ms: now.wall_ms };
        let wanted = self.shares().filter_map(|(from, shares)| {
            let stored = facts.tables.get(from);
            let (zones, subsets) = (self.zone_shares(from), self.subsets_of(&shares));
            let is_same = stored.is_some_and(|stored| {
                stored.table.shares == shares
                    && stored.table.zones == zones
                    && stored.table.subsets == subsets
                    && stored.table.origin != TableOrigin::ByHand
            });
            let table = RegionTable { shares, zones, subsets, origin: TableOrigin::Planned(confirmation) };
            let is_due = self.is_confirmation_due(table.shares.drops(), now);
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
        let round = self.round + 1;
        let origin = TableOrigin::Planned(Confirmation { round, at_ms: now.wall_ms });
        let due = facts
            .planned_tables()
            .filter(|(_, stored)| self.is_confirmation_due(stored.table.shares.drops(), now));
        let confirmed = due.map(|(from, stored)| TableWrite {
            from: from.clone(),
            table: Some(RegionTable { origin, ..stored.table.clone() }),
            replaces: Some(stored.revision),
        });
        let confirmed: Vec<_> = confirmed.collect();
        if !confirmed.is_empty() {
            self.round = round;
        }
        confirmed
    }

    /// Whether any table of the last plan is to be confirmed.
    pub(super) fn is_any_confirmation_due(&self, now: Now) -> bool {
        self.is_confirmation_due(self.state.tables().drops(), now)
    }

    /// Whether tables are to be confirmed that drop calls, or that drop none.
    fn is_confirmation_due(&self, drops: bool, now: Now) -> bool {
        // Services that begin to drop calls together, as when a region is lost, are confirmed at different moments.
        let is_next = |at: u64, every: u64| {
            let slot = |at_ms: u64| at_ms.saturating_add(self.phase_ms) / every;
            slot(now.ms) > slot(at)
        };
        let is_due = match self.confirmed_at_ms {
            None => now.ms.saturating_sub(now.started_ms) >= self.phase_ms % TAKEOVER_MS,
            Some(at) => is_next(at, CONFIRM_INTERVAL_MS),
        };
        is_due
            || (drops && self.drops_confirmed_at_ms.is_none_or(|at| is_next(at, CONFIRM_DROPS_INTERVAL_MS)))
    }
}
