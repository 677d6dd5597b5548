use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How one try ended, as far as the choice of the next endpoint cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It answered, and the answer says nothing against it.
    Ok,
    /// It answered with a failure of its own (such as HTTP 5xx), or broke off.
    Failed,
    /// No connection, or no answer in time.
    Unreachable,
}

/// What this client knows of one endpoint by its own calls.
#[derive(Debug, Default)]
pub struct Slot {
    outstanding: AtomicU32,
    failures: AtomicU32,
    penalised_until: AtomicU64,
}

impl Slot {
    /// Calls begun and not finished.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.outstanding.load(Relaxed)
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures.load(Relaxed)
    }

    /// When the penalty for recent failures ends, in nanoseconds of the caller's clock; 0 means that there is none.
    #[inline]
    pub fn penalised_until(&self) -> u64 {
        self.penalised_until.load(Relaxed)
    }
}
