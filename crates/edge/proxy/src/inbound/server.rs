//! The server in front of a local program.
//!
//! It does for the program what the server library does in process: registers and drains the endpoint, reports the
//! number of requests in flight with each response, refuses keys of shards that the instance does not hold, and limits
//! concurrency.
//!
//! `serve_http` of the library (hyper) serves the connections, and not `http1` and `http2` of this crate: registration,
//! shard checks, limits and load reports are layers of that server, which take its request type.

use fairmesh_server::{MeshServer, serve_http};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    error::ProxyError,
    inbound::{
        config::{InboundConfig, InboundEndpoint},
        local_forwarder::LocalForwarder,
    },
};

/// A running inbound server.
#[derive(Debug)]
pub struct InboundServer {
    server: MeshServer,
    serving: JoinHandle<()>,
}

/// The address of an inbound server, bound and not registered yet.
#[derive(Debug)]
pub struct BoundInbound {
    listener: TcpListener,
    config: InboundConfig,
}

impl BoundInbound {
    /// Binds the address.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(config: InboundConfig) -> Result<Self, ProxyError> {
        let address = config.inbound.address;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ProxyError::Listen { address, source })?;
        Ok(Self { listener, config })
    }

    /// Registers the endpoint and serves. Every other listener of the process is bound by then.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub async fn start(self) -> Result<InboundServer, ProxyError> {
        let Self { listener, config } = self;
        let InboundEndpoint { service, address, program } = config.inbound.clone();
        let forward = LocalForwarder::new(program, config.protocol);
        let server = server_builder(config).start().await.map_err(ProxyError::Inbound)?;
        tracing::info!(%service, %address, %program, "serving in front of a program");
        let serving = tokio::spawn({
            let server = server.clone();
            let forward = tower::service_fn(move |request| forward.clone().call(request));
            async move {
                // Fails only if the listener has no address, and it is bound.
                let _ = serve_http(listener, forward, &server).await;
            }
        });
        Ok(InboundServer { server, serving })
    }
}

impl InboundServer {
    /// The registered endpoint.
    pub fn server(&self) -> MeshServer {
        self.server.clone()
    }

    /// Drains: callers move away, requests in flight complete, and the endpoint is deregistered, all within the
    /// deadline.
    pub async fn stop(self) {
        self.server.shutdown().await;
        // Ends with the drain.
        let _ = self.serving.await;
    }
}

fn server_builder(config: InboundConfig) -> fairmesh_server::ServerBuilder {
    let InboundConfig {
        transport,
        inbound,
        protocol,
        instance,
        location,
        requests,
        adaptive,
        drain,
        agent,
        control,
    } = config;
    let mut builder = MeshServer::builder(inbound.service.to_string())
        .address(inbound.address)
        .protocol(protocol)
        .at_most(requests)
        .drain_deadline(drain);
    if let Some(transport) = transport {
        builder = builder.transport(transport);
    }
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
