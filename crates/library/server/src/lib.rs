//! The server side: a tower layer that reports load and checks shard ownership, registration, and graceful stop.
//!
//! ```no_run
//! use std::convert::Infallible;
//! use fairmesh_server::{MeshServer, serve_http};
//! use http::{Request, Response};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! let server = MeshServer::builder("shop/cart").listener(&listener)?.start().await?;
//! let service = tower::service_fn(async |_: Request<hyper::body::Incoming>| {
//!     Ok::<_, Infallible>(Response::new(String::from("hello\n")))
//! });
//! serve_http(listener, service, &server).await?;
//! # Ok(()) }
//! ```
//!
//! Any other hyper, axum or tonic server works as well:
//! - wrap the service in [`MeshServer::layer`],
//! - pass [`MeshServer::draining`] to the server's graceful shutdown,
//! - call [`MeshServer::drain_on`] with [`terminated`],
//! - stop waiting for the server at [`MeshServer::gone`],
//! - and await [`MeshServer::shutdown`] once the server has returned.
//!
//! Servers with their own accept loop do not limit the time until the first request. Therefore serve axum's router with
//! [`serve_http`], and tonic's server with connections from [`incoming`].
//!
//! ```no_run
//! # use fairmesh_server::{MeshServer, terminated};
//! # async fn run<E: std::error::Error + 'static>(
//! #     server: MeshServer, serving: impl Future<Output = Result<(), E>>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! server.drain_on(terminated());
//! tokio::select! {
//!     ended = serving => ended?,      // such as tonic's serve_with_shutdown(address, server.draining())
//!     () = server.gone() => {}        // it still waits for streams when the drain deadline has passed
//! }
//! server.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! Decision: the program keeps its own lease, with the same task that `fairmesh register` uses for other programs.
//! Rejected: the agent watches processes, because it would have to know how each is started and stopped.

#![warn(clippy::missing_errors_doc)]

mod authorization;
mod builder;
mod cpu;
mod drain;
mod layer;
mod load_report;
mod parent_call;
mod registration;
mod serve;
mod shards;
#[cfg(test)]
mod tests;
mod usage_reports;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::watch;

pub use authorization::{Caller, ConnectInfo};
pub use builder::ServerBuilder;
pub use drain::terminated;
pub use fairmesh_model::{
    EndpointState, InstanceId, Invalid, KeyRange, Location, Protocol, Region, ServiceName, ShardId, SpiffeId,
};
pub use fairmesh_wire::transport::{Address, Transport};
pub use layer::{
    ServerBody, ServerFuture, ServerLayer, ServerService,
    server_load::{Admission, Outstanding},
};
pub use parent_call::{ParentCall, ParentScope};
pub use registration::lease::{Drained, RegistrationState};
pub use serve::{
    incoming_streams::{IncomingStream, incoming},
    serve_http,
};
pub use shards::HookResult;

// Items for `fairmesh register` and the proxy, in addition to the public API; no promise is made about them.
#[doc(hidden)]
pub use {
    authorization::{AcceptedCall, ConnectionAuthorizer, CountedBody, CountedRequest, identity_of},
    builder::{ServerTransport, default_instance, transport_of_agent},
    cpu::{Cpu, CpuTime},
    drain::drain_deadline,
    fairmesh_wire::transport::Stream,
    layer::caller_counts::RequestBytes,
    registration::{
        DEFAULT_LEASE, Registration, SHARDS_AWARE, SHARDS_LABEL,
        lease::Lease,
        registry_addresses::registry_addresses,
        registry_client::{RegistryClient, RegistryError},
    },
    serve::{CallerConnection, CallerLayer, serve_connections},
    shards::ShardHooks,
    usage_reports::SignalReports,
};

use authorization::PolicySubscription;
use drain::Phase;

/// This program as an endpoint of a service: registered until it shuts down. Cheap to clone.
///
/// When the last clone is dropped without [`shutdown`](Self::shutdown), renewals stop and the lease expires.
#[doc(alias = "Server")]
#[derive(Clone, Debug)]
pub struct MeshServer {
    inner: Arc<Inner>,
}

/// Former name of [`MeshServer`].
#[deprecated = "name it MeshServer: programs of gRPC have tonic's Server too"]
pub type Server = MeshServer;

#[derive(Debug)]
struct Inner {
    layer: ServerLayer,
    lease: Arc<Lease>,
    phase: watch::Sender<Phase>,
    drain_deadline: Duration,
    transport: Transport,
    /// Whether the program provided the transport and may use its identity elsewhere too.
    shares_identity: bool,
    shards: shards::RunningShardWatch,
    signals: SignalReports,
    _shard_load: shards::shard_load::ShardLoadReports,
    _cpu_sampler: cpu::sampler::CpuSampler,
    policy: Option<PolicySubscription>,
}

impl MeshServer {
    /// Configures an endpoint of `service`, such as `shop/cart`.
    pub fn builder(service: impl Into<String>) -> ServerBuilder {
        ServerBuilder::new(service.into())
    }

    /// The layer to wrap the service in. Apply it only once.
    pub fn layer(&self) -> ServerLayer {
        self.inner.layer.clone()
    }

    /// Calls and streams in flight.
    pub fn outstanding(&self) -> Outstanding {
        self.inner.layer.outstanding()
    }

    /// The concurrency limit, and the number of rejected calls.
    pub fn admission(&self) -> Admission {
        self.inner.layer.admission()
    }

    /// Reports a metric of the program, such as the length of its queue, in every response until it is set again; see
    /// [`ServerLayer::metric`].
    ///
    /// # Errors
    /// The name or value is invalid. The metric then keeps its value.
    pub fn metric(&self, name: &str, value: f64) -> Result<(), Invalid> {
        self.inner.layer.metric(name, value)
    }

    /// The state of the registration, with notification of changes.
    pub fn registration_state(&self) -> watch::Receiver<RegistrationState> {
        self.inner.lease.registration_state()
    }

    /// Marks the endpoint as serving; needed only after [`ServerBuilder::starting`].
    pub fn ready(&self) {
        self.inner.lease.set(EndpointState::Serving);
    }

    /// Drains, and returns when the endpoint is deregistered. First callers are asked to move, then calls in flight
    /// finish. Then [`draining`](Self::draining) resolves, so that the program's server closes its connections. Finally
    /// the endpoint is deregistered. All of this takes place within the drain deadline. A second call joins the drain
    /// in progress.
    pub async fn shutdown(&self) -> Drained {
        self.begin_drain();
        let mut phase = self.inner.phase.subscribe();
        loop {
            if let Phase::Deregistered(drained) = &*phase.borrow_and_update() {
                return drained.clone();
            }
            // The sender is owned by `self`.
            if phase.changed().await.is_err() {
                return Drained::Unreported("the server was dropped".into());
            }
        }
    }

    /// Drains once `signal` resolves, such as [`terminated`]. Must be called within a tokio runtime.
    pub fn drain_on(&self, signal: impl Future<Output = ()> + Send + 'static) {
        let inner = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            signal.await;
            if let Some(inner) = inner.upgrade() {
                Self { inner }.begin_drain();
            }
        });
    }

    /// Whether no drain has begun, nor the handover to a successor.
    #[doc(hidden)]
    pub fn is_running(&self) -> bool {
        matches!(*self.inner.phase.borrow(), Phase::Running)
    }

    /// Resolves when callers have moved and their calls are complete. The program must then stop accepting, and close
    /// connections gracefully. For `serve_with_shutdown` and similar functions.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        self.reaches(Phase::is_closing)
    }

    /// Resolves when a drain is over: nothing is in flight or the drain deadline has passed, and the endpoint is
    /// deregistered. Unlike [`shutdown`](Self::shutdown), it does not start a drain.
    ///
    /// Servers that close gracefully wait for every stream, however long it lasts. Stop waiting for them when this
    /// resolves.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        self.reaches(|phase| matches!(phase, Phase::Deregistered(_)))
    }

    fn reaches(&self, is_there: fn(&Phase) -> bool) -> impl Future<Output = ()> + Send + 'static {
        let mut phase = self.inner.phase.subscribe();
        async move {
            if phase.wait_for(is_there).await.is_err() {
                // All handles were dropped without a drain, so the drain never ends.
                std::future::pending::<()>().await;
            }
        }
    }
}
