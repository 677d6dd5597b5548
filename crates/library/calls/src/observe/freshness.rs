use std::{fmt, time::Duration};

use fairmesh_model::Location;
use fairmesh_wire::transport::Address;

/// Age and source of the records.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Freshness {
    /// Whether the agent is connected.
    pub connected: bool,
    /// Time since the records were last confirmed.
    pub age: Duration,
    /// Address of the agent or control plane that is followed.
    pub address: Option<Address>,
    /// Location of this program as reported by the agent.
    pub location: Option<Location>,
    /// Why there is no connection.
    pub error: Option<String>,
}

impl Freshness {
    /// Why the program still waits for its first records.
    pub(crate) fn lack(&self) -> String {
        let from =
            self.address.as_ref().map_or_else(|| "no agent or control plane".to_owned(), ToString::to_string);
        match (self.connected, &self.error) {
            (true, _) => format!("{from} responds, but has no records yet; see its log"),
            (false, Some(error)) => format!("{from}: {error}"),
            (false, None) => format!("{from} has not responded yet"),
        }
    }

    /// The age in seconds, rounded to a tenth.
    fn tenths(&self) -> String {
        let tenths = self.age.as_millis() / 100;
        format!("{}.{} s", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.address.as_ref().map(ToString::to_string).unwrap_or_else(|| "no source".into());
        match (&self.connected, &self.error) {
            (true, _) => write!(f, "from {from}, {} old", self.tenths()),
            (false, error) => {
                let error = error.as_deref().unwrap_or("not connected");
                write!(f, "from memory or disk, {} old; {from}: {error}", self.tenths())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_text_has_rounded_age_and_lack_text_has_none() {
        let mut freshness = Freshness {
            connected: true,
            age: Duration::from_nanos(10_029_840_362),
            address: Some(Address::Tcp("agent:1".into())),
            location: None,
            error: None,
        };
        assert_eq!(freshness.to_string(), "from agent:1, 10.0 s old");
        assert!(freshness.lack().contains("has no records yet"));
        freshness.connected = false;
        freshness.error = Some("refused".into());
        assert_eq!(freshness.lack(), "agent:1: refused");
    }
}
