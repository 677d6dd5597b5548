//! Accepts connections within the connection limit.

mod connection;

use std::{
    future::{pending, poll_fn},
    net::SocketAddr,
    pin::pin,
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
    kernel::redirected::RedirectedConnections,
    lifecycle::bind::BoundListener,
    limits::Limits,
    listen::{
        connection_permit::ConnectionPermit,
        cores::Cores,
        listener_config::{ListenerConfig, ListenerKind},
        socket,
    },
    shutdown::Shutdown,
    tls::Tls,
};

/// Delay after a failed accept, as when file descriptors run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Shared by all listeners.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionServer {
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) cores: Cores,
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) redirected: Arc<RedirectedConnections>,
}

impl ConnectionServer {
    pub(crate) fn new(
        forwarder: Arc<Forwarder>,
        shutdown: Arc<Shutdown>,
        cores: Cores,
        limits: Limits,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { forwarder, permits, shutdown, cores, limits, tls: None, redirected: Arc::default() }
    }

    /// Sets the certificate of listeners with TLS.
    pub(crate) fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }

    /// Time limit of a successor for its routing information.
    pub(crate) fn handover_timeout(&self) -> Duration {
        self.limits.handover_timeout
    }

    /// Number of open client connections.
    pub(crate) fn open_connections(&self) -> u64 {
        self.forwarder.metrics.connections.open.load(Relaxed)
    }

    /// Number of connections that were closed at the drain deadline.
    pub(crate) fn drain_timeouts(&self) -> u64 {
        self.forwarder.metrics.connections.drain_timeouts.load(Relaxed)
    }

    /// Accepts connections once `known` completes, until the proxy stops.
    pub(crate) async fn accept(
        self,
        bound: BoundListener,
        listen: Arc<ListenerConfig>,
        known: impl Future<Output = ()>,
        connections: TaskTracker,
    ) {
        tokio::select! {
            () = known => {}
            () = self.shutdown.started().cancelled() => return,
        }
        tracing::info!(address = %bound.address, service = %listen.description(), "listening");
        let serving = Arc::new(self);
        let mut redirects = pin!(async {
            match &listen.kind {
                ListenerKind::Kernel { only_services, pins } => {
                    serving.redirected.follow(pins, &bound.listener, *only_services, &serving.forwarder).await
                }
                _ => pending().await,
            }
        });
        loop {
            let accepted = tokio::select! {
                // First: connections that wait here already were redirected, which is known from the maps alone.
                biased;
                () = &mut redirects => return,
                () = serving.shutdown.started().cancelled() => return serving.redirected.stop(),
                accepted = serving.next_connection(&bound.listener) => accepted,
            };
            let Some((stream, caller, permit)) = accepted else { continue };
            let (own, listen) = (Arc::clone(&serving), Arc::clone(&listen));
            let serve = move |stream, core_guard| {
                let permit = Arc::new(ConnectionPermit::new(&own.forwarder.metrics, permit, core_guard));
                own.serve_connection(stream, caller, listen, permit)
            };
            serving.cores.spawn(&connections, stream, serve);
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
