use std::fmt;

use fairmesh_model::{Region, Zone};

/// Place of an agent: a region, and a zone if the agent knows its zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Region of the agent.
    pub region: Region,
    /// Zone within the region, if known.
    pub zone: Option<Zone>,
}

impl fmt::Display for Place {
    /// Formats as `REGION` or `REGION/ZONE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.zone {
            Some(zone) => write!(f, "{}/{zone}", self.region),
            None => write!(f, "{}", self.region),
        }
    }
}
