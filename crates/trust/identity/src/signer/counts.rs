use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Where a handshake was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignedBy {
    /// In this process; no key server is configured.
    Local,
    /// On the key server.
    KeyServer,
    /// In this process, because the key server failed.
    Fallback,
}

impl SignedBy {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Local, Self::KeyServer, Self::Fallback];

    /// Value of the label in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::KeyServer => "key_server",
            Self::Fallback => "fallback",
        }
    }
}

/// Number and duration of handshake signatures.
#[derive(Debug, Default)]
pub struct SignatureCounts {
    /// Number of signatures and their total duration in microseconds, by [`SignedBy`].
    signed: [(AtomicU64, AtomicU64); SignedBy::ALL.len()],
    failed: AtomicU64,
}

impl SignatureCounts {
    /// Counts a signature; `None` counts a failure of the key server.
    pub(super) fn record(&self, by: Option<SignedBy>, took: Duration) {
        let Some(by) = by else {
            self.failed.fetch_add(1, Relaxed);
            return;
        };
        let (count, duration) = &self.signed[by as usize];
        count.fetch_add(1, Relaxed);
        duration.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the number of signatures and their total duration.
    pub fn signed(&self, by: SignedBy) -> (u64, Duration) {
        let (count, duration) = &self.signed[by as usize];
        (count.load(Relaxed), Duration::from_micros(duration.load(Relaxed)))
    }

    /// Returns the number of failures of the key server, including those after which the local key signed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }
}
