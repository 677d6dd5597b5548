//! The other direction: a program that knows nothing of Fairmesh is an endpoint of a service, with this in front of it.
//!
//! Calls come to an address of the proxy's own and go on to the program. What a server with the library does, this does for
//! it: it registers and drains, reports how many requests are under way with each answer, refuses keys of shards that it
//! does not hold, and lets no more through at a time than the program can bear.

use fairmesh_server::{Server, serve_http};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    error::ProxyError,
    inbound::{
        config::{InboundConfig, InboundEndpoint},
        local_forwarder::LocalForwarder,
    },
};

/// A program that is spoken for.
#[derive(Debug)]
pub struct InboundServer {
    server: Server,
    serving: JoinHandle<()>,
}

impl InboundServer {
    /// Listens for the program, and registers it.
    ///
    /// # Errors
    /// When the address cannot be listened on, or what is given is not valid.
    pub async fn start(config: InboundConfig) -> Result<Self, ProxyError> {
        let InboundEndpoint { service, address, program } = config.inbound.clone();
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ProxyError::Listen { address, source })?;
        let forward = LocalForwarder::new(program, config.protocol);
        let server = server_builder(config).start().await.map_err(ProxyError::Inbound)?;
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

fn server_builder(config: InboundConfig) -> fairmesh_server::ServerBuilder {
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
