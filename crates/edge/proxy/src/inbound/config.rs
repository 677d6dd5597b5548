//! Configuration of an inbound endpoint.

use std::{fmt, net::SocketAddr, str::FromStr};

use fairmesh_calls::{Address, Location, Protocol, ServiceName, Transport};
use fairmesh_edge::limits::Limits;
use fairmesh_model::Invalid;

/// The service, the address for callers, and the address of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundEndpoint {
    /// The service of the endpoint.
    pub service: ServiceName,
    /// Address for callers. It must be an address of this machine that callers can reach.
    pub address: SocketAddr,
    /// Address of the program, usually on loopback.
    pub program: SocketAddr,
}

/// Configuration of a [`ServedEndpoint`](crate::ServedEndpoint).
#[derive(Clone, Debug)]
pub struct InboundConfig {
    /// How connections of callers are accepted.
    pub transport: Option<Transport>,
    /// The service and its addresses.
    pub inbound: InboundEndpoint,
    /// Protocol that the program speaks.
    pub protocol: Protocol,
    /// Instance id within the service. By default host and port.
    pub instance: Option<String>,
    /// Location of the endpoint. By default the agent's location.
    pub location: Option<Location>,
    /// Maximum number of concurrent requests. Further requests are refused, and callers retry them at other
    /// endpoints.
    pub requests: u32,
    /// Whether the maximum is lowered adaptively while latency indicates overload.
    pub adaptive: bool,
    /// Limits of connections, tunnels, request bodies and drains.
    pub limits: Limits,
    /// Agent to register with; `None` for the default one.
    pub agent: Option<Address>,
    /// Control plane to register with, for use without an agent.
    pub control: Option<Address>,
}

impl FromStr for InboundEndpoint {
    type Err = Invalid;

    /// Parses `shop/cart@10.0.0.7:8080=127.0.0.1:9000`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = |problem: &str| {
            let hint =
                "write tenant/service@IP:PORT=IP:PORT: where callers connect, and where the program listens";
            Invalid::new("", format!("'{text}' {problem}"), hint)
        };
        let (service, addresses) = text.split_once('@').ok_or_else(|| wrong("has no address"))?;
        let (address, program) = addresses.split_once('=').ok_or_else(|| wrong("has no program"))?;
        let read =
            |text: &str| text.parse().map_err(|_| wrong("has a part that is not an IP address with a port"));
        let this =
            Self { service: ServiceName::new(service)?, address: read(address)?, program: read(program)? };
        match this.address == this.program {
            true => Err(wrong("has the same address twice")),
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
    fn inbound_endpoints_parse_as_displayed() {
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
