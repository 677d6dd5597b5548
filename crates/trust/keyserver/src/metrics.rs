//! The counters of a key server. Labels are names of configured keys and fixed reasons, so that callers cannot make them grow.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::Label;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, gauge::ConstGauge},
    registry::{Registry, Unit},
};

/// Why nothing was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no such key, or the caller may not use it.
    NotPermitted,
    /// The request is no handshake of TLS 1.3 for this type of key.
    Invalid,
    /// Too many requests at a time.
    Overloaded,
    /// The signature failed.
    Failed,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::NotPermitted, Self::Invalid, Self::Overloaded, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::NotPermitted => "not_permitted",
            Self::Invalid => "invalid",
            Self::Overloaded => "overloaded",
            Self::Failed => "failed",
        }
    }
}

/// The counters.
#[derive(Debug)]
pub(crate) struct Metrics {
    signed: BTreeMap<Label, Signatures>,
    refused: [AtomicU64; Refusal::ALL.len()],
}

/// Signatures with one key.
#[derive(Debug, Default)]
struct Signatures {
    count: AtomicU64,
    duration_us: AtomicU64,
}

impl Metrics {
    pub(crate) fn new<'a>(keys: impl Iterator<Item = &'a Label>) -> Self {
        let signed = keys.map(|name| (name.clone(), Signatures::default())).collect();
        Self { signed, refused: Default::default() }
    }

    pub(crate) fn signed(&self, key: &Label, took: Duration) {
        if let Some(signed) = self.signed.get(key) {
            signed.count.fetch_add(1, Relaxed);
            signed.duration_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    pub(crate) fn refused(&self, why: Refusal) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn register(self: &Arc<Self>, registry: &mut Registry) {
        let family = |kind| Family { kind, metrics: Arc::clone(self) };
        registry.register("signatures", "Signatures made, by key", family(Kind::Signatures));
        registry.register_with_unit(
            "signature_duration",
            "Time that signatures took, by key",
            Unit::Seconds,
            family(Kind::Durations),
        );
        registry.register("signatures_refused", "Requests refused, by reason", family(Kind::Refusals));
        registry.register("keys", "Keys held", ConstGauge::new(self.signed.len() as u64));
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Signatures,
    Durations,
    Refusals,
}

/// One series for each key or reason.
#[derive(Debug)]
struct Family {
    kind: Kind,
    metrics: Arc<Metrics>,
}

impl EncodeMetric for Family {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        if let Kind::Refusals = self.kind {
            for (reason, count) in Refusal::ALL.iter().zip(&self.metrics.refused) {
                let labels = [("reason", reason.as_str())];
                let mut series = encoder.encode_family(&labels)?;
                series.encode_counter::<NoLabelSet, _, u64>(&count.load(Relaxed), None)?;
            }
            return Ok(());
        }
        for (key, signed) in &self.metrics.signed {
            let labels = [("key", key.as_str())];
            let mut series = encoder.encode_family(&labels)?;
            if let Kind::Durations = self.kind {
                let seconds = Duration::from_micros(signed.duration_us.load(Relaxed)).as_secs_f64();
                series.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
            } else {
                series.encode_counter::<NoLabelSet, _, u64>(&signed.count.load(Relaxed), None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
