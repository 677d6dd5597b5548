use std::{net::SocketAddr, str::FromStr, time::Duration};

use fairmesh_model::{Invalid, Probe as Model};

/// How long a look may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How to see that a program answers: `tcp`, that it takes connections, or `http:/path`, that it answers a GET with 2xx or
/// 3xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Probe(Model);

impl FromStr for Probe {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong =
            || Invalid::new("probe", format!("'{text}' is no way to look"), "write tcp, or http:/path");
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
    /// Looks once, for at most 2 s; the error says what was seen.
    pub(super) async fn look(&self, address: SocketAddr) -> Result<(), String> {
        fairmesh_agent::probe(&self.0, address, TIMEOUT).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_read_as_they_are_written() {
        assert_eq!("tcp".parse(), Ok(Probe(Model::Tcp)));
        let http = Model::Http { path: "/health?x=1".into(), status: None };
        assert_eq!("http:/health?x=1".parse(), Ok(Probe(http)));
        for wrong in ["", "udp", "http", "http://host/", "http:health"] {
            assert!(wrong.parse::<Probe>().is_err(), "{wrong}");
        }
    }
}
