use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use fairmesh_client::ServiceName;
use fairmesh_model::Invalid;

use crate::AccessLog;

/// What a proxy does.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Where programs connect; at least one.
    pub listen: Vec<Listen>,
    /// Where `/metrics`, `/healthz`, `/readyz` and `/services` are.
    pub admin: Option<SocketAddr>,
    /// The Unix socket at which it takes over from a proxy that runs, and is succeeded in its turn.
    pub handover: Option<PathBuf>,
    /// Bounds.
    pub limits: Limits,
    /// What is written of each request.
    pub access_log: AccessLog,
}

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub address: SocketAddr,
    /// Whom everything that comes there is for; without one, the host of each request says it.
    pub service: Option<ServiceName>,
}

/// Bounds of a proxy. Beyond them it sheds, and says so.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of programs at one time; the next ones wait to be accepted.
    pub connections: usize,
    /// How long the head of a request may take, and a kept connection may be idle.
    pub head: Duration,
    /// How long what is under way may take once the proxy stops.
    pub drain: Duration,
    /// How long one that takes over waits for its routing information before it gives up and lets the other go on.
    pub first_contact: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            // What nginx gives idle connections: clients take care to send nothing on older ones.
            head: Duration::from_secs(75),
            drain: Duration::from_secs(25),
            first_contact: Duration::from_secs(15),
        }
    }
}

impl Listen {
    /// Whom it is for, for people.
    pub(crate) fn words(&self) -> String {
        self.service.as_ref().map_or_else(|| "by host".into(), ToString::to_string)
    }
}

impl FromStr for Listen {
    type Err = Invalid;

    /// Reads `127.0.0.1:8080=shop/cart`, or an address alone.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (address, service) = match text.split_once('=') {
            Some((address, service)) => (address, Some(ServiceName::new(service)?)),
            None => (text, None),
        };
        let address = address.parse().map_err(|_| {
            let problem = format!("'{address}' is no address with a port");
            Invalid::new("", problem, "write IP:PORT, or IP:PORT=tenant/service")
        })?;
        Ok(Self { address, service })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.service {
            Some(service) => write!(f, "{}={service}", self.address),
            None => self.address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_as_they_are_written() {
        for text in ["127.0.0.1:8080=shop/cart", "[::1]:80"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for wrong in ["8080", "127.0.0.1:8080=cart", "localhost:80", ""] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }
}
