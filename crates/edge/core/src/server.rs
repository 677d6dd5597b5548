//! Accepts the connections of listeners within the connection limit, and serves them.

mod connection;
pub mod http;
pub mod options;

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Poll, ready},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::{sync::PollSemaphore, task::TaskTracker};

use crate::{
    counter::increment,
    forward::forwarder::Forwarder,
    limits::Limits,
    listen::{connection_permit::ConnectionPermit, cores::Cores, socket},
    shutdown::Shutdown,
    tls::Tls,
};

/// Delay after a failed accept, as when file descriptors run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Shared by all listeners.
#[derive(Debug)]
pub struct ConnectionServer {
    /// Forwards the requests of all connections.
    pub forwarder: Arc<Forwarder>,
    /// When connections have to end.
    pub shutdown: Arc<Shutdown>,
    /// Limits of connections and requests.
    pub limits: Limits,
    permits: Arc<Semaphore>,
    cores: Cores,
    tls: Option<Arc<Tls>>,
}

/// An accepted connection.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The connection.
    pub stream: TcpStream,
    /// Address of the client.
    pub caller: SocketAddr,
    /// Held until everything that came of the connection has ended.
    pub permit: Arc<ConnectionPermit>,
}

impl ConnectionServer {
    /// A server without a certificate. `cores` serve the connections.
    pub fn new(forwarder: Arc<Forwarder>, shutdown: Arc<Shutdown>, cores: Cores, limits: Limits) -> Self {
        let permits = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { forwarder, permits, shutdown, cores, limits, tls: None }
    }

    /// Sets the certificate of listeners with TLS.
    pub fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }

    /// Number of open client connections.
    pub fn open_connections(&self) -> u64 {
        self.forwarder.metrics.connections.open.load(Relaxed)
    }

    /// Number of connections that were closed at the drain deadline.
    pub fn drain_timeouts(&self) -> u64 {
        self.forwarder.metrics.connections.drain_timeouts.load(Relaxed)
    }

    /// Accepts connections until the shutdown starts, and has each served by `serve` as one of the tasks `connections`.
    pub async fn accept<S, F>(&self, listener: &TcpListener, connections: &TaskTracker, serve: S)
    where
        S: Fn(AcceptedConnection) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.shutdown.started().cancelled() => return,
                accepted = self.next_connection(listener) => accepted,
            };
            let Some((stream, caller, permit)) = accepted else { continue };
            let (metrics, serve) = (Arc::clone(&self.forwarder.metrics), serve.clone());
            let serve = move |stream, core_guard| {
                let permit = Arc::new(ConnectionPermit::new(&metrics, permit, core_guard));
                serve(AcceptedConnection { stream, caller, permit })
            };
            self.cores.spawn(connections, stream, serve);
        }
    }

    /// Accepts the next connection once a permit is free. Connections beyond the limit stay in the accept queue, so
    /// that clients see a slow connect and no error. Permits are granted to listeners in the order of waiting, and a
    /// listener without clients holds none.
    async fn next_connection(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let metrics = &self.forwarder.metrics;
        if self.permits.available_permits() == 0 {
            increment(&metrics.connections.accepts_delayed);
        }
        let mut permits = PollSemaphore::new(Arc::clone(&self.permits));
        let accepted = poll_fn(|context| {
            // The semaphore is never closed.
            let Some(permit) = ready!(permits.poll_acquire(context)) else { return Poll::Ready(None) };
            let accepted = ready!(listener.poll_accept(context));
            Poll::Ready(Some(accepted.map(|(stream, caller)| (stream, socket::canonical(caller), permit))))
        });
        match accepted.await? {
            Ok(accepted) => {
                increment(&metrics.connections.accepted);
                Some(accepted)
            }
            Err(error) => {
                increment(&metrics.connections.accepts_delayed);
                tracing::warn!(%error, "cannot accept; check the limit of open files");
                sleep(ACCEPT_RETRY).await;
                None
            }
        }
    }
}
