use std::{
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::{
    listen::{cores::CoreGuard, silent_connections::SilentConnection},
    metrics::ProxyMetrics,
    observe::counter::increment,
};

/// A permit of the connection limit. It is released, and the connection no longer counted as open or on its core, once
/// everything that came of the connection has ended, tunnels included.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    metrics: Arc<ProxyMetrics>,
    _permit: OwnedSemaphorePermit,
    _core_guard: Option<CoreGuard>,
    /// Whether no request was received.
    is_silent: AtomicBool,
    silent: Mutex<Option<SilentConnection>>,
}

impl ConnectionPermit {
    pub(crate) fn new(
        metrics: &Arc<ProxyMetrics>,
        permit: OwnedSemaphorePermit,
        core_guard: Option<CoreGuard>,
    ) -> Self {
        increment(&metrics.connections.open);
        let (is_silent, silent) = (AtomicBool::new(false), Mutex::default());
        Self { metrics: Arc::clone(metrics), _permit: permit, _core_guard: core_guard, is_silent, silent }
    }

    /// The connection makes room for others as long as it has sent no request.
    pub(crate) fn silent(mut self, silent: SilentConnection) -> Self {
        *self.is_silent.get_mut() = true;
        self.silent = Mutex::new(Some(silent));
        self
    }

    /// A request was received.
    #[inline]
    pub(crate) fn note_request(&self) {
        if self.is_silent.load(Relaxed) {
            self.is_silent.store(false, Relaxed);
            drop(self.silent.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    fn displacement(&self) -> Option<Arc<Notify>> {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.as_ref().map(SilentConnection::displaced)
    }

    /// Completes once the connection has to make room for another one.
    pub(crate) async fn displaced(&self) {
        match self.displacement() {
            Some(displaced) => displaced.notified().await,
            None => pending().await,
        }
        if !self.is_silent.load(Relaxed) {
            // Its first request came at the same time.
            pending().await
        }
        increment(&self.metrics.connections.displaced);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.metrics.connections.open.fetch_sub(1, Relaxed);
    }
}
