//! What endpoint pools count.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_balancer::poll::EstimateCounters;

/// Counters of all endpoint pools of a mesh.
#[derive(Debug, Default)]
pub struct PoolCounters {
    /// Load reports that were malformed or implausible.
    pub reports_ignored: AtomicU64,
    /// Endpoints by the age of their load reports.
    pub estimates: EstimateCounters,
    opened: AtomicU64,
    closed: AtomicU64,
    connection_reuses: AtomicU64,
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<PoolCounters>);

/// Counts one.
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

    /// Connections opened since the start, and those open now.
    pub fn connections(&self) -> (u64, u64) {
        // Closed first: a connection opened and closed in between must not make the difference negative.
        let closed = self.closed.load(Relaxed);
        let opened = self.opened.load(Relaxed);
        (opened, opened.saturating_sub(closed))
    }

    /// Attempts over a connection that had carried another before.
    pub fn connection_reuses(&self) -> u64 {
        self.connection_reuses.load(Relaxed)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        count(&self.0.closed);
    }
}
