use crate::{Cluster, HostType, Region, Zone};

/// Location of a process. Programs learn theirs from the agent, so that they need no configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The region, by which rings and region tables are defined.
    pub region: Region,
    /// The failure domain within the region, if known.
    pub zone: Option<Zone>,
    /// The cluster that the machine belongs to, if known.
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
