//! The share of a connection in the connection limit.

use std::sync::{Arc, OnceLock, atomic::Ordering::Relaxed};

use tokio::sync::OwnedSemaphorePermit;

use crate::{counter::increment, listen::cores::CoreGuard, metrics::EdgeMetrics};

/// A permit of the connection limit. It is released, and the connection no longer counted as open or on its core, once
/// everything that came of the connection has ended, tunnels included.
#[derive(Debug)]
pub struct ConnectionPermit {
    metrics: Arc<EdgeMetrics>,
    _permit: OwnedSemaphorePermit,
    /// A permit of a further limit.
    further: OnceLock<OwnedSemaphorePermit>,
    _core_guard: Option<CoreGuard>,
}

impl ConnectionPermit {
    pub(crate) fn new(
        metrics: &Arc<EdgeMetrics>,
        permit: OwnedSemaphorePermit,
        core_guard: Option<CoreGuard>,
    ) -> Self {
        increment(&metrics.connections.open);
        let further = OnceLock::new();
        Self { metrics: Arc::clone(metrics), _permit: permit, further, _core_guard: core_guard }
    }

    /// Holds a permit of a further limit too, such as that of the client's tenant. The first one stays.
    pub fn hold(&self, permit: OwnedSemaphorePermit) {
        let _ = self.further.set(permit);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.metrics.connections.open.fetch_sub(1, Relaxed);
    }
}
