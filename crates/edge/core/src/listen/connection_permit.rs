//! The share of a connection in the connection limit.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::sync::OwnedSemaphorePermit;

use crate::{counter::increment, listen::cores::CoreGuard, metrics::EdgeMetrics};

/// A permit of the connection limit. It is released, and the connection no longer counted as open or on its core, once
/// everything that came of the connection has ended, tunnels included.
#[derive(Debug)]
pub struct ConnectionPermit {
    metrics: Arc<EdgeMetrics>,
    _permit: OwnedSemaphorePermit,
    _core_guard: Option<CoreGuard>,
}

impl ConnectionPermit {
    pub(crate) fn new(
        metrics: &Arc<EdgeMetrics>,
        permit: OwnedSemaphorePermit,
        core_guard: Option<CoreGuard>,
    ) -> Self {
        increment(&metrics.connections.open);
        Self { metrics: Arc::clone(metrics), _permit: permit, _core_guard: core_guard }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.metrics.connections.open.fetch_sub(1, Relaxed);
    }
}
