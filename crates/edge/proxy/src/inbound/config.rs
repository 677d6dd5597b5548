//! Configuration of an inbound endpoint.

use std::{fmt, net::SocketAddr, str::FromStr};

use fairmesh_calls::{Address, Location, Protocol, ServiceName, Transport};
use fairmesh_edge::limits::Limits;
use fairmesh_kernel::MAX_REQUEST;
use fairmesh_model::Invalid;

use crate::inbound::local_transport::NeedsFront;

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
    /// Control planes to register with, in order, for use without an agent.
    pub control: Vec<Address>,
}

impl InboundConfig {
    /// Default of [`requests`](Self::requests).
    pub const DEFAULT_REQUESTS: u32 = 1024;

    /// The program, if the kernel may send it requests that do not pass this proxy.
    ///
    /// # Errors
    /// This proxy translates requests, or limits them more than by default: a program with such a limit needs it.
    pub(crate) fn local_program(&self) -> Result<SocketAddr, NeedsFront> {
        if self.protocol != Protocol::Http1 {
            return Err(NeedsFront::Protocol);
        }
        if self.adaptive || self.requests < Self::DEFAULT_REQUESTS {
            return Err(NeedsFront::Concurrency);
        }
        if self.limits.body.is_some_and(|most| most < MAX_REQUEST as u64) {
            return Err(NeedsFront::Bodies);
        }
        Ok(self.inbound.program)
    }
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
    fn kernel_may_send_program_requests_only_if_proxy_limits_and_translates_none() {
        let inbound: InboundEndpoint = "shop/cart@10.0.0.7:8080=127.0.0.1:9000".parse().unwrap();
        let program = inbound.program;
        let config = InboundConfig {
            transport: None,
            inbound,
            protocol: Protocol::Http1,
            instance: None,
            location: None,
            requests: InboundConfig::DEFAULT_REQUESTS,
            adaptive: false,
            limits: Limits::default(),
            agent: None,
            control: Vec::new(),
        };
        let limited = |body: u64| Limits { body: Some(body), ..Limits::default() };
        assert_eq!(config.local_program(), Ok(program));
        let large = InboundConfig { limits: limited(MAX_REQUEST as u64), requests: 5000, ..config.clone() };
        assert_eq!(large.local_program(), Ok(program));
        for (changed, reason) in [
            (InboundConfig { protocol: Protocol::Http2, ..config.clone() }, NeedsFront::Protocol),
            (InboundConfig { protocol: Protocol::Grpc, ..config.clone() }, NeedsFront::Protocol),
            (InboundConfig { adaptive: true, ..config.clone() }, NeedsFront::Concurrency),
            (InboundConfig { requests: 8, ..config.clone() }, NeedsFront::Concurrency),
            (InboundConfig { limits: limited(MAX_REQUEST as u64 - 1), ..config }, NeedsFront::Bodies),
        ] {
            assert_eq!(changed.local_program(), Err(reason));
        }
    }

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
