//! The counters of a key server. Label values are names of configured keys and fixed reasons, so that callers cannot
//! create new ones.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_metrics::Register as _;
use fairmesh_model::Label;
use prometheus_client::registry::Registry;

/// Why a request was not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The key does not exist, or the caller may not use it.
    NotPermitted,
    /// The request is not a TLS 1.3 handshake for this type of key.
    Invalid,
    /// Too many requests are in progress.
    Overloaded,
    /// Signing failed.
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

/// The counters of a key server.
#[derive(Debug)]
pub(crate) struct Metrics {
    signed: BTreeMap<Label, Signatures>,
    refused: [AtomicU64; Refusal::ALL.len()],
}

/// Number and duration of signatures with one key.
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

    pub(crate) fn register(&self, registry: &mut Registry) {
        let key = |key: &Label| [("key", key.to_string().into())];
        let counts = self.signed.iter().map(|(name, signed)| (key(name), &signed.count));
        registry.counters("signatures", "Signatures made, by key", counts);
        let seconds = |us: &AtomicU64| Duration::from_micros(us.load(Relaxed)).as_secs_f64();
        let durations = self.signed.iter().map(|(name, signed)| (key(name), seconds(&signed.duration_us)));
        registry.counters("signature_duration_seconds", "Time that signatures took, by key", durations);
        let refused = Refusal::ALL.iter().zip(&self.refused);
        let refused = refused.map(|(reason, count)| ([("reason", reason.as_str().into())], count));
        registry.counters("signatures_refused", "Requests refused, by reason", refused);
        registry.gauge("keys", "Keys held", self.signed.len());
    }
}
