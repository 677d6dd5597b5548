//! The share of a connection in the connection limit.

use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed};

use tokio::sync::OwnedSemaphorePermit;

use crate::{counter::increment, listen::cores::CoreGuard, metrics::EdgeMetrics};

/// A permit of the connection limit. It is released, and the connection no longer counted as open or on its core, once
/// everything that came of the connection has ended, tunnels included.
#[derive(Debug)]
pub struct ConnectionPermit {
    metrics: Arc<EdgeMetrics>,
    held: Mutex<HeldPermits>,
    _core_guard: Option<CoreGuard>,
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
        Self { metrics: Arc::clone(metrics), held, _core_guard: core_guard }
    }

    /// Holds permits of two other limits in place of that of the listener, such as those of all identified clients and of the client's
    /// tenant.
    pub fn exchange(&self, permit: OwnedSemaphorePermit, further: OwnedSemaphorePermit) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (permit, Some(further));
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.metrics.connections.open.fetch_sub(1, Relaxed);
    }
}
