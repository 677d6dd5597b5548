use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use crate::{InstanceId, Invalid, Location};

/// The weight of an ordinary host; an endpoint of twice this power carries 2000.
pub const FULL_WEIGHT: u32 = 1000;
/// The greatest weight: hosts of one fleet differ by 2 ×, seldom by 10 × (Uber, host-aware balancing), so more is a slip of the pen.
pub const MAX_WEIGHT: u32 = 100 * FULL_WEIGHT;

/// One running copy of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The stable identity; unique within the service.
    pub instance: InstanceId,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it runs.
    pub location: Location,
    /// Whether it should get calls.
    pub state: EndpointState,
    /// Relative compute power in thousandths, 1 to [`MAX_WEIGHT`]; [`FULL_WEIGHT`] is an ordinary host (ServiceRouter §3.4.2).
    pub weight: u32,
    /// How long it is believed without a renewal, or `None` where another source vouches for it.
    pub lease: Option<Duration>,
    /// What the owner wrote about it; at most 32 pairs.
    pub labels: BTreeMap<String, String>,
}

impl Endpoint {
    /// The label in which a process says which one it is of those that run under the instance's name, one after the
    /// other: a number, greater than those of the processes before it.
    pub const INCARNATION: &str = "fairmesh.incarnation";

    /// Which process it is; 0 where it does not say so.
    pub fn incarnation(&self) -> u64 {
        self.labels.get(Self::INCARNATION).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Checks what the types do not: weight, lease and labels within their ranges, and a number as incarnation.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            return Err(Invalid::new(
                "weight",
                format!("{} is out of range", self.weight),
                format!("write 1 to {MAX_WEIGHT}; {FULL_WEIGHT} is an ordinary host"),
            ));
        }
        if self.address.port() == 0 {
            return Err(Invalid::new(
                "address",
                "port 0 cannot be called",
                "write the port that it listens on",
            ));
        }
        if let Some(lease) = self.lease
            && !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&lease)
        {
            return Err(Invalid::new("lease", format!("{lease:?} is out of range"), "write 1s to 1h"));
        }
        let labels_fit = self.labels.len() <= 32
            && self.labels.iter().all(|(name, text)| (1..=63).contains(&name.len()) && text.len() <= 255);
        if !labels_fit {
            let hint = "keep at most 32, with names up to 63 bytes and values up to 255";
            return Err(Invalid::new("labels", "too many or too long", hint));
        }
        match self.labels.get(Self::INCARNATION) {
            Some(text) if text.parse::<u64>().is_err() => {
                let field = format!("labels.{}", Self::INCARNATION);
                Err(Invalid::new(field, format!("'{text}' is not a number"), "write digits, or leave it out"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether an endpoint should get calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointState {
    /// It runs and is not ready: no calls.
    Starting,
    /// It takes calls.
    #[default]
    Serving,
    /// It will stop: no new calls, those under way finish (ServiceRouter §3.2).
    Draining,
    /// Its lease ran out or its probes failed: calls only when nobody better is left.
    Lost,
}

impl EndpointState {
    /// The state as users read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Lost => "lost",
        }
    }
}
