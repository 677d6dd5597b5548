use crate::{Cluster, HostType, Region, Zone};

/// Where a process runs: an agent tells its callers, so that no program has to be configured with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The region; what rings and region tables are about.
    pub region: Region,
    /// The failure domain within the region, where one is known.
    pub zone: Option<Zone>,
    /// The cluster that owns the machine, where one is known.
    pub cluster: Option<Cluster>,
    /// The hardware type of the machine, where one is known.
    pub host_type: Option<HostType>,
}

impl Location {
    /// A place known by its region only.
    pub fn in_region(region: Region) -> Self {
        Self { region, zone: None, cluster: None, host_type: None }
    }
}
