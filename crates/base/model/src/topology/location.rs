use crate::{Cluster, HostType, Region, Zone};

/// The location of a process. Programs learn their location from the agent, so they need no configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The region. Rings and region tables are defined in terms of regions.
    pub region: Region,
    /// The failure domain within the region, if known.
    pub zone: Option<Zone>,
    /// The cluster to which the machine belongs, if known.
    pub cluster: Option<Cluster>,
    /// The hardware type of the machine, if known.
    pub host_type: Option<HostType>,
}

impl Location {
    /// A location with only a region.
    pub fn in_region(region: Region) -> Self {
        Self { region, zone: None, cluster: None, host_type: None }
    }
}
