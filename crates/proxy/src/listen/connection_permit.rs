use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::sync::OwnedSemaphorePermit;

use crate::{listen::cores::CoreGuard, metrics::ProxyMetrics, observe::counter::increment};

/// A program's place among the connections that the proxy takes: it is free again, and no longer counted, as open and on its
/// loop, when all that came of the connection is over, tunnels included.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    metrics: Arc<ProxyMetrics>,
    _permit: OwnedSemaphorePermit,
    _core_guard: Option<CoreGuard>,
}

impl ConnectionPermit {
    pub(crate) fn new(
        metrics: &Arc<ProxyMetrics>,
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
