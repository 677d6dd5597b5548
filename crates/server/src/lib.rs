//! The server side: a tower layer that reports load, checks shard ownership, registers the service and drains it.
//!
//! ```no_run
//! use std::convert::Infallible;
//! use fairmesh_server::{Server, serve_http};
//! use http::{Request, Response};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! let server = Server::builder("shop/cart").address(listener.local_addr()?).start().await?;
//! let service = tower::service_fn(async |_: Request<hyper::body::Incoming>| {
//!     Ok::<_, Infallible>(Response::new(String::from("hello\n")))
//! });
//! serve_http(listener, service, &server).await?;
//! # Ok(()) }
//! ```
//!
//! Any other hyper, axum or tonic server works as well: put [`Server::layer`] around the service, give
//! [`Server::draining`] to its graceful shutdown, call [`Server::drain_on`] with [`terminated`], stop waiting for it at
//! [`Server::gone`], and await [`Server::shutdown`] once it has returned. Servers that accept by themselves bound no time until the
//! first request: axum's router is best given to [`serve_http`], tonic's server to [`incoming`]'s connections.
//!
//! ```no_run
//! # use fairmesh_server::{Server, terminated};
//! # async fn run<E: std::error::Error + 'static>(
//! #     server: Server, serving: impl Future<Output = Result<(), E>>,
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
//! Decision: the program keeps its own lease, by the same task that `fairmesh register` uses for programs that cannot.
//! Having the agent watch processes was rejected: it would have to know how each is started and stopped.

mod addresses;
mod backoff;
mod body;
mod builder;
mod counted;
mod cpu;
mod drain;
mod gate;
mod incoming;
mod layer;
mod lease;
mod link;
mod load;
mod meter;
mod metrics;
mod ownership;
mod refusal;
mod registration;
mod report;
mod serve;
mod shards;
#[cfg(test)]
mod tests;
mod usage;
mod work;

use std::{future::Future, sync::Arc, time::Duration};

use fairmesh_model::{EndpointState, Invalid};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

pub use addresses::registry_addresses;
pub use body::ServerBody;
pub use builder::{ServerBuilder, default_instance};
pub use cpu::{Cpu, CpuTime};
pub use drain::{drain_deadline, terminated};
pub use fairmesh_model::{Location, Protocol, Region};
pub use incoming::{IncomingStream, incoming};
pub use layer::{ServerFuture, ServerLayer, ServerService};
pub use lease::{Drained, Lease, Standing};
pub use link::{Link, LinkError};
pub use load::{Admission, Outstanding};
pub use registration::{DEFAULT_LEASE, Registration, SHARDS_AWARE, SHARDS_LABEL};
pub use serve::serve_http;
pub use shards::{HookResult, ShardHooks};
pub use usage::UsageReports;

use drain::Phase;

/// This program as one endpoint of a service: registered until it shuts down. Cheap to clone.
///
/// When the last clone is dropped without [`shutdown`](Self::shutdown), renewals stop and the lease runs out.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    layer: ServerLayer,
    lease: Arc<Lease>,
    phase: watch::Sender<Phase>,
    drain_deadline: Duration,
    _shards: AbortOnDropHandle<()>,
    _usage: UsageReports,
    _work: work::WorkReports,
    _meter: meter::CpuMeter,
}

impl Server {
    /// Begins to describe an endpoint of `service`, such as `shop/cart`.
    pub fn builder(service: impl Into<String>) -> ServerBuilder {
        ServerBuilder::new(service.into())
    }

    /// The layer to put around the service, once.
    pub fn layer(&self) -> ServerLayer {
        self.inner.layer.clone()
    }

    /// What the service is working on now.
    pub fn outstanding(&self) -> Outstanding {
        self.inner.layer.outstanding()
    }

    /// What was let in, and what not.
    pub fn admission(&self) -> Admission {
        self.inner.layer.admission()
    }

    /// Reports a metric of the program's own, such as the length of its queue, in every answer from now on, until it is set anew;
    /// see [`ServerLayer::metric`].
    ///
    /// # Errors
    /// Where callers could not go by it; it stays as it was.
    pub fn metric(&self, name: &str, value: f64) -> Result<(), Invalid> {
        self.inner.layer.metric(name, value)
    }

    /// How the endpoint stands with the registry, and every change of that.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.inner.lease.standing()
    }

    /// Says that calls may come; needed only after [`ServerBuilder::starting`].
    pub fn ready(&self) {
        self.inner.lease.set(EndpointState::Serving);
    }

    /// Drains, and returns when the endpoint is out of the registry: callers are told to leave, then what is under way
    /// finishes, then [`draining`](Self::draining) resolves so that the program's server closes its connections, and at
    /// last the endpoint is taken out. All within the drain deadline. Calling it again joins the drain under way.
    pub async fn shutdown(&self) -> Drained {
        self.begin_drain();
        let mut phase = self.inner.phase.subscribe();
        loop {
            if let Phase::Gone(drained) = &*phase.borrow_and_update() {
                return drained.clone();
            }
            // The sender lives in `self`.
            if phase.changed().await.is_err() {
                return Drained::Untold("the server is gone".into());
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

    /// Resolves when callers have moved and their calls are done: the moment to stop accepting and to close
    /// connections gracefully. For `serve_with_shutdown` and the like.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        self.reaches(Phase::closes)
    }

    /// Resolves when a drain is over: nothing is under way any more or the drain deadline has passed, and the endpoint is
    /// out of the registry. Unlike [`shutdown`](Self::shutdown) it starts no drain.
    ///
    /// Servers that close gracefully wait for every stream, however long; stop waiting for them here.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        self.reaches(|phase| matches!(phase, Phase::Gone(_)))
    }

    fn reaches(&self, is_there: fn(&Phase) -> bool) -> impl Future<Output = ()> + Send + 'static {
        let mut phase = self.inner.phase.subscribe();
        async move {
            if phase.wait_for(is_there).await.is_err() {
                // All handles were dropped without a drain: nothing will ever ask to close.
                std::future::pending::<()>().await;
            }
        }
    }
}
