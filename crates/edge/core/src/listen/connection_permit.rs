//! A connection's permit of the connection limit.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    counter::increment,
    listen::{event_loops::CoreGuard, silent_connections::SilentConnection},
    metrics::EdgeMetrics,
};

/// A connection's permit of the connection limit. While the permit is held, the connection counts as open, and as a
/// connection of its event loop. It is released once everything that the connection started has ended, including
/// tunnels.
#[derive(Debug)]
pub struct ConnectionPermit {
    metrics: Arc<EdgeMetrics>,
    held: Mutex<HeldPermits>,
    _core_guard: Option<CoreGuard>,
    /// Registration as silent; set for a connection that may be closed to make room until it has sent a request.
    silent: OnceLock<SilentConnection>,
}

/// One permit of the listener's limit. After [`exchange`](ConnectionPermit::exchange), two permits of other limits.
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

    /// Replaces the listener's permit by permits of two other limits, such as the limit of all identified
    /// clients and that of the client's tenant.
    pub fn exchange(&self, permit: OwnedSemaphorePermit, further: OwnedSemaphorePermit) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (permit, Some(further));
    }

    /// Marks the connection as silent: it may be closed to make room until its first request.
    pub(crate) fn set_silent(&self, silent: SilentConnection) {
        // Set only once, since a connection is served once.
        let _ = self.silent.set(silent);
    }

    /// Notes that the complete headers of a request were received.
    #[inline]
    pub(crate) fn note_request(&self) {
        if let Some(silent) = self.silent.get() {
            silent.note_request();
        }
    }
}

pin_project! {
    /// Serves a connection until it ends, or is closed to make room for another.
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
        // Polled first, since a request may have arrived meanwhile.
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
