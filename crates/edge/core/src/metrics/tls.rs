//! Counters of TLS.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_identity::{SignatureCounts, SignedBy};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter},
    registry::{Registry, Unit},
};

/// TLS handshakes of clients, and reloads of the certificate.
#[derive(Debug, Default)]
pub struct TlsMetrics {
    pub(crate) handshakes: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    /// Failed handshakes for which the pool had no free thread.
    pub(crate) refused_handshakes: AtomicU64,
    pub(crate) signatures: Arc<SignatureCounts>,
    pub(crate) reloads: AtomicU64,
    pub(crate) failed_reloads: AtomicU64,
}

impl TlsMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("tls_handshakes", "Completed TLS handshakes of programs", &self.handshakes),
            ("tls_handshake_failures", "Failed TLS handshakes of programs", &self.failed_handshakes),
            (
                "tls_handshakes_refused",
                "Failed TLS handshakes, since too many waited for the key server",
                &self.refused_handshakes,
            ),
            ("tls_reloads", "Reloads of a changed certificate", &self.reloads),
            ("tls_reload_failures", "Failed reloads of a changed certificate", &self.failed_reloads),
        ] {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
        let failed = ConstCounter::new(self.signatures.failed());
        registry.register("tls_signature_failures", "Failed signatures of TLS handshakes", failed);
        let of = |is_duration| Signatures { counts: Arc::clone(&self.signatures), is_duration };
        registry.register(
            "tls_signatures",
            "Signatures of TLS handshakes, by where they were made",
            of(false),
        );
        let help = "Time that signatures of TLS handshakes took";
        registry.register_with_unit("tls_signature_duration", help, Unit::Seconds, of(true));
    }
}

/// A metric with one series per place where handshakes are signed.
#[derive(Debug)]
struct Signatures {
    counts: Arc<SignatureCounts>,
    is_duration: bool,
}

impl EncodeMetric for Signatures {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for by in SignedBy::ALL {
            let (count, took) = self.counts.signed(by);
            let labels = [("by", by.as_str())];
            let mut series = encoder.encode_family(&labels)?;
            match self.is_duration {
                true => series.encode_counter::<NoLabelSet, _, u64>(&took.as_secs_f64(), None)?,
                false => series.encode_counter::<NoLabelSet, _, u64>(&count, None)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
