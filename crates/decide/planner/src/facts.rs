//! What planners start from, kept by commit: an index of records, and the reports of the last round.

mod endpoints;
mod mesh;
mod partial_subset;
mod policies;
mod reports;
mod topology;

use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::{Region, RegionTable, ServiceKind, TableOrigin, Traffic, Zone};

pub use endpoints::RegionEndpoints;
pub use mesh::MeshFacts;
pub(crate) use partial_subset::PartialSubset;
pub use policies::{PolicyFacts, Subset};
pub use reports::{CallerRates, ServiceReports, ZoneRates};
pub use topology::{StoredDrain, TopologyFacts};

use crate::{lone_shards::LoneShards, region_drains::why_not_drained, service_planner::TableWrite};

/// Facts of one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceFacts {
    /// Grows whenever any of the facts changes.
    pub version: u64,
    /// The part of its policy that asks for a planner; the default, which asks for none, without a policy.
    pub traffic: Traffic,
    /// Whether its policy divides calls in a way that this release does not know.
    pub not_understood: bool,
    /// Whether its calls may not leave their region.
    pub local_only: bool,
    /// Whether its calls prefer the zone of their caller.
    pub zone_first: bool,
    /// To how many endpoints a caller keeps connections by its policy.
    pub subset: Subset,
    /// Which endpoints can serve a call.
    pub kind: ServiceKind,
    /// Its endpoints. A region is listed while it has any, in whatever state.
    pub endpoints: BTreeMap<Region, RegionEndpoints>,
    /// Reports of callers and servers.
    pub reports: ServiceReports,
    /// Its tables, by the region of the callers.
    pub tables: BTreeMap<Region, StoredTable>,
    /// Its shards without a copy elsewhere, where a drain asks for them.
    pub lone_shards: Arc<LoneShards>,
}

/// A table as it stands in the routing information base.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTable {
    /// The table.
    pub table: RegionTable,
    /// The revision that wrote it.
    pub revision: u64,
}

impl ServiceFacts {
    /// Power of the serving endpoints of a region by zone; `None` is those without one.
    pub fn zone_powers(&self, region: &Region) -> BTreeMap<Option<Zone>, f64> {
        let zones = self.endpoints.get(region).into_iter().flat_map(RegionEndpoints::zones);
        zones.map(|(zone, power)| (zone.cloned(), power)).collect()
    }

    /// Number of serving endpoints of a region.
    pub fn serving_in(&self, region: &Region) -> u32 {
        self.endpoints.get(region).map_or(0, RegionEndpoints::serving)
    }

    /// Deletes the tables that a planner wrote, for a service whose policy asks for none any more.
    pub fn leftover_tables(&self) -> Vec<TableWrite> {
        let delete = |(from, stored): (&Region, &StoredTable)| TableWrite {
            from: from.clone(),
            table: None,
            replaces: Some(stored.revision),
        };
        match self.has_leftovers() {
            true => self.planned_tables().map(delete).collect(),
            false => Vec::new(),
        }
    }

    /// The tables that a planner wrote.
    pub(crate) fn planned_tables(&self) -> impl Iterator<Item = (&Region, &StoredTable)> {
        self.tables.iter().filter(|(_, stored)| stored.table.origin != TableOrigin::ByHand)
    }

    /// Whether tables of a planner are left though the policy asks for none. A policy that is not understood may ask for one of
    /// a later release, whose tables stay.
    fn has_leftovers(&self) -> bool {
        !self.traffic.is_planned() && !self.not_understood && self.planned_tables().next().is_some()
    }

    /// Whether nothing is known of the service.
    fn is_empty(&self) -> bool {
        let Self { traffic, not_understood, local_only, zone_first, subset, kind, endpoints, tables, .. } =
            self;
        endpoints.is_empty()
            && *kind == ServiceKind::default()
            && *subset == Subset::default()
            && tables.is_empty()
            && !not_understood
            && !local_only
            && !zone_first
            && *traffic == Traffic::default()
    }

    /// Why drains of regions move no calls of the service; `None` if they move them.
    pub fn why_not_drained(&self) -> Option<&'static str> {
        let has_traffic = self.traffic != Traffic::default();
        why_not_drained(has_traffic.then_some(&self.traffic), self.local_only)
    }

    /// The policy's subset; `None` if callers keep connections to all endpoints, or a key selects the endpoint.
    pub(crate) fn own_subset(&self) -> Option<u32> {
        let Subset(endpoints) = self.subset;
        (self.kind == ServiceKind::Replicated && endpoints > 0).then_some(endpoints)
    }

    /// Power of the serving endpoints of a region.
    pub fn power_in(&self, region: &Region) -> f64 {
        self.endpoints.get(region).map_or(0.0, RegionEndpoints::power)
    }

    /// Power of all serving endpoints.
    pub fn power(&self) -> f64 {
        self.endpoints.values().map(RegionEndpoints::power).sum()
    }
}
