//! Counters of endpoint pools.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_balancer::load_poll::EstimateCounters;

/// Counters of all endpoint pools of a mesh.
#[derive(Debug, Default)]
pub struct PoolCounters {
    /// Load reports ignored as malformed or implausible.
    pub reports_ignored: AtomicU64,
    /// Numbers of endpoints by the age of their load reports.
    pub estimates: EstimateCounters,
    opened: AtomicU64,
    closed: AtomicU64,
    connection_reuses: AtomicU64,
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<PoolCounters>);

/// Increments a counter.
#[inline]
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl PoolCounters {
    #[inline]
    pub(crate) fn count_reuse(&self) {
        count(&self.connection_reuses);
    }

    pub(crate) fn open_connection(self: &Arc<Self>) -> OpenConnection {
        count(&self.opened);
        OpenConnection(Arc::clone(self))
    }

    /// Returns the number of connections opened since the start, and the number now open.
    pub fn connections(&self) -> (u64, u64) {
        // `closed` is read first: a connection opened and closed in between must not make the difference negative.
        let closed = self.closed.load(Relaxed);
        let opened = self.opened.load(Relaxed);
        (opened, opened.saturating_sub(closed))
    }

    /// Number of attempts on a connection that had carried another attempt before.
    pub fn connection_reuses(&self) -> u64 {
        self.connection_reuses.load(Relaxed)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        count(&self.0.closed);
    }
}
