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
            ("tls_handshakes", "Connections of programs that were secured", &self.handshakes),
            (
                "tls_handshakes_failed",
                "Connections that ended before they were secured",
                &self.failed_handshakes,
            ),
            ("tls_reloads", "Times that a changed certificate was taken", &self.reloads),
            (
                "tls_reloads_refused",
                "Times that a changed certificate could not be used",
                &self.failed_reloads,
            ),
        ] {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
