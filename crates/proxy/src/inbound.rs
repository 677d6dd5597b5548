//! The other direction: a program that knows nothing of Fairmesh is an endpoint of a service, with this in front of it.
//!
//! Calls come to an address of the proxy's own and go on to the program. What a server with the library does, this does for
//! it: it registers and drains, reports how many requests are under way with each answer, refuses keys of shards that it
//! does not hold, and lets no more through at a time than the program can bear.

mod body;

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use fairmesh_client::{Address, BoxError, Fault, FaultKind, Location, Protocol, ServiceName};
use fairmesh_headers::grpc_content_type;
use fairmesh_model::Invalid;
use fairmesh_server::{Server, serve_http};
use http::{HeaderValue, Request, Response, Uri, Version, uri::Scheme};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{net::TcpListener, task::JoinHandle};

use self::body::{Passed, Upload};
use crate::{ProxyError, answer, hops};

/// How long a connection to the program may take, which is on this machine.
const CONNECT: Duration = Duration::from_secs(1);
/// How long connections to the program are kept idle: below what any server gives them, so that none is used that just closes.
const IDLE: Duration = Duration::from_secs(1);

/// Which program is an endpoint of which service, and where callers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
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
    pub inbound: Inbound,
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

/// A program that is spoken for.
#[derive(Debug)]
pub struct Spoken {
    server: Server,
    serving: JoinHandle<()>,
}

impl Spoken {
    /// Listens for the program, and registers it.
    ///
    /// # Errors
    /// When the address cannot be listened on, or what is given is not valid.
    pub async fn start(config: InboundConfig) -> Result<Self, ProxyError> {
        let Inbound { service, address, program } = config.inbound.clone();
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ProxyError::Listen { address, source })?;
        let forward = Forward::new(program, config.protocol);
        let server = builder(config).start().await.map_err(ProxyError::Inbound)?;
        tracing::info!(%service, %address, %program, "serving for a program");
        let serving = tokio::spawn({
            let server = server.clone();
            let forward = tower::service_fn(move |request| forward.clone().call(request));
            async move {
                // Fails only where the listener has no address, and it had one.
                let _ = serve_http(listener, forward, &server).await;
            }
        });
        Ok(Self { server, serving })
    }

    /// The endpoint that is served for the program.
    pub fn server(&self) -> Server {
        self.server.clone()
    }

    /// Drains: callers move, what is under way ends, and it is out of the registry, all within the deadline.
    pub async fn stop(self) {
        self.server.shutdown().await;
        // It ends with the drain.
        let _ = self.serving.await;
    }
}

fn builder(config: InboundConfig) -> fairmesh_server::ServerBuilder {
    let InboundConfig { inbound, protocol, instance, location, requests, adaptive, drain, agent, control } =
        config;
    let mut builder = Server::builder(inbound.service.to_string())
        .address(inbound.address)
        .protocol(protocol)
        .at_most(requests)
        .drain_deadline(drain);
    if adaptive {
        builder = builder.adaptive();
    }
    if let Some(instance) = instance {
        builder = builder.instance(instance);
    }
    if let Some(location) = location {
        builder = builder.location(location);
    }
    if let Some(agent) = agent {
        builder = builder.agent(agent);
    }
    if let Some(control) = control {
        builder = builder.control(control);
    }
    builder
}

/// Passes requests on to the program.
#[derive(Clone)]
struct Forward {
    program: SocketAddr,
    client: Client<HttpConnector, Upload>,
    is_multiplexed: bool,
}

impl Forward {
    fn new(program: SocketAddr, protocol: Protocol) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http2_only(protocol.is_multiplexed())
            .build(connector);
        Self { program, client, is_multiplexed: protocol.is_multiplexed() }
    }

    async fn call(self, request: Request<Incoming>) -> Result<Response<Passed>, BoxError> {
        let grpc = grpc_content_type(request.headers());
        match self.client.request(self.for_program(request)).await {
            Ok(mut answer) => {
                hops::strip_answer(answer.headers_mut());
                *answer.version_mut() = Version::default();
                Ok(answer.map(Passed::Program))
            }
            Err(error) => Ok(refused(&self.fault(error), grpc)),
        }
    }

    /// The request as the program gets it: to its address, with nothing of the connection that it came on.
    fn for_program(&self, request: Request<Incoming>) -> Request<Upload> {
        let (mut head, body) = request.into_parts();
        let body = Upload::new(body, self.is_multiplexed.then_some(&head.method));
        hops::strip_request(&mut head.headers);
        if !self.is_multiplexed {
            hops::join_cookies(&mut head.headers);
        }
        let mut uri = head.uri.into_parts();
        // What it is called by stays in `host`; HTTP/2 has it here, and the program is to see it.
        if let (Some(authority), false) = (&uri.authority, head.headers.contains_key(http::header::HOST))
            && let Ok(host) = authority.as_str().parse()
        {
            head.headers.insert(http::header::HOST, host);
        }
        uri.scheme = Some(Scheme::HTTP);
        // An address is an authority.
        uri.authority = self.program.to_string().parse().ok();
        uri.path_and_query = uri.path_and_query.or_else(|| "/".parse().ok());
        head.uri = Uri::from_parts(uri).unwrap_or_default();
        head.version = Version::default();
        head.extensions.clear();
        Request::from_parts(head, body)
    }

    fn fault(&self, error: hyper_util::client::legacy::Error) -> Fault {
        let program = self.program;
        let (kind, what) = match error.is_connect() {
            true => (FaultKind::Unreachable, "cannot be reached"),
            false => (FaultKind::Reset, "broke off before it answered; the call may have been carried out"),
        };
        Fault::new(kind, format!("the program at {program} {what}")).caused_by(error)
    }
}

fn refused(fault: &Fault, grpc: Option<HeaderValue>) -> Response<Passed> {
    answer::of_fault(fault, grpc).map(Passed::Own)
}

impl FromStr for Inbound {
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

impl fmt::Display for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}={}", self.service, self.address, self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_as_it_is_written() {
        for text in ["shop/cart@10.0.0.7:8080=127.0.0.1:9000", "shop/cart@[::1]:80=[::1]:81"] {
            assert_eq!(text.parse::<Inbound>().unwrap().to_string(), text);
        }
        for wrong in [
            "shop/cart",
            "shop/cart@1.2.3.4:5",
            "cart@1.2.3.4:5=1.2.3.4:6",
            "shop/cart@a:5=1.2.3.4:6",
            "a/b@1.2.3.4:5=1.2.3.4:5",
        ] {
            assert!(wrong.parse::<Inbound>().is_err(), "{wrong}");
        }
    }
}
