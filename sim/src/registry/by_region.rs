//! Snapshots by region, for calls that a region table sends there.

use std::sync::Arc;

use fairmesh_model::{Endpoint, EndpointState, Location, Region};
use fairmesh_router::{EndpointStats, ServiceTable};

use super::Registry;

impl Registry {
    /// From now on callers compile a table for each of these regions.
    pub(crate) fn compile_by_region(&mut self, regions: &[Region]) {
        self.regions_of_tables = regions.to_vec();
    }

    /// The power of the serving endpoints of each region.
    pub(crate) fn powers(&self, regions: usize) -> Vec<f64> {
        let mut powers = vec![0.0; regions];
        for entry in &self.entries {
            if entry.listed && entry.endpoint.state == EndpointState::Serving {
                powers[usize::from(entry.region)] += f64::from(entry.endpoint.weight);
            }
        }
        powers
    }
}

/// For each region a snapshot as of a caller in that region, which prefers the endpoints there.
pub(super) fn tables_by_region(
    registry: &Registry,
    endpoints: &[Endpoint],
    client: u64,
    endpoint_stats: &Arc<EndpointStats>,
) -> Vec<Option<ServiceTable>> {
    let serves = |region: &Region| {
        let mut of_region = endpoints.iter().filter(|endpoint| endpoint.location.region == *region);
        of_region.any(|endpoint| endpoint.state == EndpointState::Serving)
    };
    let table = |region: &Region| {
        let location = Location::in_region(region.clone());
        ServiceTable::compile(&registry.compile_input(endpoints, &location, client), endpoint_stats, None)
    };
    registry.regions_of_tables.iter().map(|region| serves(region).then(|| table(region))).collect()
}
