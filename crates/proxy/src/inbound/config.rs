//! Which program is served, and how.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use fairmesh_client::{Address, Location, Protocol, ServiceName};
use fairmesh_model::Invalid;

/// Which program is an endpoint of which service, and where callers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundEndpoint {
    /// The service.
    pub service: ServiceName,
    /// Where callers connect: an address of this machine that they reach.
    pub address: SocketAddr,
    /// Where the program listens, on loopback usually.
    pub program: SocketAddr,
}

/// How the program is spoken for.
#[derive(Clone, Debug)]
pub struct InboundConfig {
    /// Which one.
    pub inbound: InboundEndpoint,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its identity within the service; by host and port unless given.
    pub instance: Option<String>,
    /// Where it runs, where the agent does not say so.
    pub location: Option<Location>,
    /// Requests at one time; further ones are refused, and callers turn to others.
    pub requests: u32,
    /// Fewer while they take too long for their number.
    pub adaptive: bool,
    /// How long a planned stop may take.
    pub drain: Duration,
    /// The agent to register through, where it is not the usual one.
    pub agent: Option<Address>,
    /// A control plane to register at, where there is no agent.
    pub control: Option<Address>,
}

impl FromStr for InboundEndpoint {
    type Err = Invalid;

    /// Reads `shop/cart@10.0.0.7:8080=127.0.0.1:9000`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = |problem: &str| {
            let hint =
                "write tenant/service@IP:PORT=IP:PORT: where callers connect, and where the program listens";
            Invalid::new("", format!("'{text}' {problem}"), hint)
        };
        let (service, addresses) = text.split_once('@').ok_or_else(|| wrong("names no address"))?;
        let (address, program) = addresses.split_once('=').ok_or_else(|| wrong("names no program"))?;
        let read = |text: &str| text.parse().map_err(|_| wrong("has a part that is no address with a port"));
        let this =
            Self { service: ServiceName::new(service)?, address: read(address)?, program: read(program)? };
        match this.address == this.program {
            true => Err(wrong("names the same address twice")),
            false => Ok(this),
        }
    }
}

impl fmt::Display for InboundEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}={}", self.service, self.address, self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inbound_endpoints_are_parsed_and_displayed() {
        for text in ["shop/cart@10.0.0.7:8080=127.0.0.1:9000", "shop/cart@[::1]:80=[::1]:81"] {
            assert_eq!(text.parse::<InboundEndpoint>().unwrap().to_string(), text);
        }
        for wrong in [
            "shop/cart",
            "shop/cart@1.2.3.4:5",
            "cart@1.2.3.4:5=1.2.3.4:6",
            "shop/cart@a:5=1.2.3.4:6",
            "a/b@1.2.3.4:5=1.2.3.4:5",
        ] {
            assert!(wrong.parse::<InboundEndpoint>().is_err(), "{wrong}");
        }
    }
}
