use std::{fmt, time::Duration};

use fairmesh_model::Location;
use fairmesh_wire::transport::Address;

/// The age and the source of the records.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Freshness {
    /// Whether the agent is connected.
    pub connected: bool,
    /// How long ago the records were last confirmed.
    pub age: Duration,
    /// The agent, or control plane, that is followed.
    pub address: Option<Address>,
    /// The location of this program as the agent reports it.
    pub location: Option<Location>,
    /// Why there is no connection.
    pub error: Option<String>,
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.address.as_ref().map(ToString::to_string).unwrap_or_else(|| "no source".into());
        match (&self.connected, &self.error) {
            (true, _) => write!(f, "from {from}, {:?} old", self.age),
            (false, error) => {
                let error = error.as_deref().unwrap_or("not connected");
                write!(f, "from memory or disk, {:?} old; {from}: {error}", self.age)
            }
        }
    }
}
