//! Accepts the connections of listeners within the connection limit, and serves them.

mod connection;
pub mod http;
pub mod options;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::task::TaskTracker;

use crate::{
    counter::increment,
    forward::forwarder::Forwarder,
    limits::Limits,
    listen::{
        accept::{self, connection_limit},
        connection_permit::ConnectionPermit,
        event_loops::Cores,
        silent_connections::SilentConnections,
    },
    shutdown::Shutdown,
    tls::Tls,
};

/// Serves the connections of all listeners.
#[derive(Debug)]
pub struct ConnectionServer {
    /// Forwards the requests of all connections.
    pub forwarder: Arc<Forwarder>,
    /// Signals when connections must end.
    pub shutdown: Arc<Shutdown>,
    /// Limits of connections and requests.
    pub limits: Limits,
    permits: Arc<Semaphore>,
    silent: Arc<SilentConnections>,
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
    /// Permit held until everything that the connection started has ended.
    pub permit: Arc<ConnectionPermit>,
}

impl ConnectionServer {
    /// Creates a server without a certificate. The event loops `cores` serve the connections.
    pub fn new(forwarder: Arc<Forwarder>, shutdown: Arc<Shutdown>, cores: Cores, limits: Limits) -> Self {
        let permits = connection_limit(limits.connections);
        Self { forwarder, permits, silent: Arc::default(), shutdown, cores, limits, tls: None }
    }

    /// Sets the certificate for listeners with TLS.
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

    /// Accepts connections until the shutdown starts. `serve` serves each of them, as a task tracked in
    /// `connections`.
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

    async fn next_connection(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let metrics = &self.forwarder.metrics.connections;
        let (permits, silent) = (&self.permits, Some(&*self.silent));
        let accepted = accept::next_connection(listener, permits, &metrics.accepts_delayed, silent).await?;
        increment(&metrics.accepted);
        Some(accepted)
    }
}
