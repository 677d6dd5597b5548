use std::{net::SocketAddr, str::FromStr, time::Duration};

use fairmesh_model::{Invalid, Probe as Model};
use fairmesh_wire::transport::{EndpointAddress, Transport};

/// Timeout of a probe.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A health probe: `tcp` requires an accepted connection, `http:/path` a 2xx or 3xx response to GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Probe(Model);

impl FromStr for Probe {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || Invalid::new("probe", format!("'{text}' is not a probe"), "write tcp, or http:/path");
        let probe = match text.strip_prefix("http:") {
            None if text == "tcp" => Model::Tcp,
            Some(path) if !path.starts_with("//") => Model::Http { path: path.to_owned(), status: None },
            _ => return Err(wrong()),
        };
        probe.validate().map_err(|_| wrong())?;
        Ok(Self(probe))
    }
}

impl Probe {
    /// Probes once, for at most 2 s. The error states the reason of a failure.
    pub(super) async fn probe(&self, address: SocketAddr) -> Result<(), String> {
        // The program is on this machine, and speaks plaintext.
        let endpoint = EndpointAddress { address, peer: None, accepts_plaintext: true, from: None };
        fairmesh_agent::probe(&Transport::default(), &self.0, endpoint, TIMEOUT).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_probe_argument_round_trips() {
        assert_eq!("tcp".parse(), Ok(Probe(Model::Tcp)));
        let http = Model::Http { path: "/health?x=1".into(), status: None };
        assert_eq!("http:/health?x=1".parse(), Ok(Probe(http)));
        for wrong in ["", "udp", "http", "http://host/", "http:health"] {
            assert!(wrong.parse::<Probe>().is_err(), "{wrong}");
        }
    }
}
