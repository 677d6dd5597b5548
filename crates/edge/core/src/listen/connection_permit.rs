//! The share of a connection in the connection limit.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    counter::increment,
    listen::{cores::CoreGuard, silent_connections::SilentConnection},
    metrics::EdgeMetrics,
};

/// A permit of the connection limit. It is released, and the connection no longer counted as open or on its core, once
/// everything that came of the connection has ended, tunnels included.
#[derive(Debug)]
pub struct ConnectionPermit {
    metrics: Arc<EdgeMetrics>,
    held: Mutex<HeldPermits>,
    _core_guard: Option<CoreGuard>,
    /// Set for a connection that makes room for others as long as it has sent no request.
    silent: OnceLock<SilentConnection>,
}

/// Permits of one limit, or of that of all connections and a further one.
type HeldPermits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl ConnectionPermit {
    pub(crate) fn new(
        metrics: &Arc<EdgeMetrics>,
        permit: OwnedSemaphorePermit,
        core_guard: Option<CoreGuard>,
    ) -> Self {
        increment(&metrics.connections.open);
        let held = Mutex::new((permit, None));
        Self { metrics: Arc::clone(metrics), held, _core_guard: core_guard, silent: OnceLock::new() }
    }

    /// Holds permits of two other limits in place of that of the listener, such as those of all identified clients and of the client's
    /// tenant.
    pub fn exchange(&self, permit: OwnedSemaphorePermit, further: OwnedSemaphorePermit) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (permit, Some(further));
    }

    /// The connection makes room for others until its first request.
    pub(crate) fn set_silent(&self, silent: SilentConnection) {
        // A connection is served once.
        let _ = self.silent.set(silent);
    }

    /// A request was received, complete with its headers.
    #[inline]
    pub(crate) fn note_request(&self) {
        if let Some(silent) = self.silent.get() {
            silent.note_request();
        }
    }
}

pin_project! {
    /// Serves a connection until it ends, or has to make room for another one.
    pub(crate) struct UntilDisplaced<F> {
        permit: Arc<ConnectionPermit>,
        #[pin]
        served: F,
    }
}

impl<F> UntilDisplaced<F> {
    pub(crate) fn new(permit: Arc<ConnectionPermit>, served: F) -> Self {
        Self { permit, served }
    }
}

impl<F: Future<Output = ()>> Future for UntilDisplaced<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let own = self.project();
        // First, since a request may have come meanwhile.
        if own.served.poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !own.permit.silent.get().is_some_and(|silent| silent.poll_displaced(context)) {
            return Poll::Pending;
        }
        increment(&own.permit.metrics.connections.displaced);
        tracing::debug!("closed a connection without a request for another one");
        Poll::Ready(())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.metrics.connections.open.fetch_sub(1, Relaxed);
    }
}
