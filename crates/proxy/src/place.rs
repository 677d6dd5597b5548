use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::sync::OwnedSemaphorePermit;

use crate::{
    cores::Counted,
    metrics::{Metrics, count},
};

/// A program's place among the connections that the proxy takes: it is free again, and no longer counted, as open and on its
/// loop, when all that came of the connection is over, tunnels included.
#[derive(Debug)]
pub(crate) struct Place {
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
    _on_core: Option<Counted>,
}

impl Place {
    pub(crate) fn new(
        metrics: &Arc<Metrics>,
        permit: OwnedSemaphorePermit,
        on_core: Option<Counted>,
    ) -> Self {
        count(&metrics.open);
        Self { metrics: Arc::clone(metrics), _permit: permit, _on_core: on_core }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.open.fetch_sub(1, Relaxed);
    }
}
