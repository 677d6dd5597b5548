//! Counters of TLS.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};

/// TLS handshakes of clients, and reloads of the certificate.
#[derive(Debug, Default)]
pub(crate) struct TlsMetrics {
    pub(crate) handshakes: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) failed_reloads: AtomicU64,
}

impl TlsMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("tls_handshakes", "Completed TLS handshakes of programs", &self.handshakes),
            ("tls_handshake_failures", "Failed TLS handshakes of programs", &self.failed_handshakes),
            ("tls_reloads", "Reloads of a changed certificate", &self.reloads),
            ("tls_reload_failures", "Failed reloads of a changed certificate", &self.failed_reloads),
        ] {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
