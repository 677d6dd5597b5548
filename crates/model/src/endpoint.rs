use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

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

    /// Checks what the types do not: an address that can be called, weight, lease and labels within their ranges, and a number as incarnation.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            return Err(Invalid::new(
                "weight",
                format!("{} is out of range", self.weight),
                format!("write 1 to {MAX_WEIGHT}; {FULL_WEIGHT} is an ordinary host"),
            ));
        }
        check_address("address", self.address)?;
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

/// Refuses addresses that no call can be sent to: those that stand for every address or for many, and port 0.
pub(crate) fn check_address(field: &str, address: SocketAddr) -> Result<(), Invalid> {
    let ip = address.ip().to_canonical();
    let is_broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    let (problem, hint) = match () {
        () if address.port() == 0 => {
            ("port 0 cannot be called".to_owned(), "write the port that it listens on")
        }
        () if ip.is_unspecified() => {
            let hint = "write the address that callers reach it at, also where it listens on all";
            (format!("{ip} stands for every address of a machine"), hint)
        }
        () if ip.is_multicast() || is_broadcast => {
            (format!("{ip} stands for many machines"), "write the address of one")
        }
        () => return Ok(()),
    };
    Err(Invalid::new(field, problem, hint))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_a_call_can_be_sent_to() {
        let checked = |text: &str| check_address("address", text.parse().unwrap());
        for wrong in [
            "0.0.0.0:80",
            "[::]:80",
            "[::ffff:0.0.0.0]:80",
            "224.0.0.1:80",
            "[ff02::1]:80",
            "255.255.255.255:80",
            "[::ffff:255.255.255.255]:80",
            "10.0.0.1:0",
        ] {
            assert_eq!(checked(wrong).unwrap_err().field, "address", "{wrong}");
        }
        for right in ["10.0.0.1:80", "127.0.0.1:80", "[::1]:80", "[fe80::1]:80", "10.0.0.255:80"] {
            checked(right).unwrap();
        }
    }
}
