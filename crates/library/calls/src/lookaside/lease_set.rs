use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_connections::EndpointPool;
use fairmesh_model::{Role, ServiceName, ShardKey};
use tokio::{sync::Notify, time::Instant};

use crate::{call::nanos, discovery::Subscription};

/// Identifies leases by the role and key of their calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseKey {
    pub(crate) service: ServiceName,
    pub(crate) role: Option<Role>,
    pub(crate) key: Option<ShardKey>,
}

/// The leases of a service, or of a shard in a role.
#[derive(Debug)]
pub(crate) struct LeaseSet {
    pub(crate) subscription: Arc<Subscription<Arc<EndpointPool>>>,
    created: Instant,
    /// Number of calls begun since the last pick.
    calls: AtomicU32,
    /// Number of calls after which the leases are renewed.
    renew_after: AtomicU32,
    /// Whether a server reported the leases as outdated.
    expired: AtomicBool,
    /// Time of the last pick that followed calls, in nanoseconds since the set was created.
    last_used: AtomicU64,
    /// A separate allocation, so that the task can wait for a call without keeping the set alive.
    pub(super) renew: Arc<Notify>,
}

impl Drop for LeaseSet {
    fn drop(&mut self) {
        // Ends the renewal task.
        self.renew.notify_one();
    }
}

impl LeaseSet {
    pub(super) fn new(service: ServiceName) -> Self {
        Self {
            subscription: Arc::new(Subscription::new(service)),
            created: Instant::now(),
            calls: AtomicU32::new(0),
            renew_after: AtomicU32::new(0),
            expired: AtomicBool::new(false),
            last_used: AtomicU64::new(0),
            renew: Arc::default(),
        }
    }

    /// Counts a call that begins. A call wakes the renewal task if it uses up the leases, or if it is the first call
    /// while there are no leases.
    pub(super) fn count_call(&self) {
        if self.calls.fetch_add(1, Relaxed) == self.renew_after.load(Relaxed) {
            self.renew.notify_one();
        }
    }

    /// Renews the leases because a server reported them as outdated.
    pub(crate) fn expire(&self) {
        self.expired.store(true, Relaxed);
        self.renew.notify_one();
    }

    pub(super) fn needs_renewal(&self) -> bool {
        self.expired.load(Relaxed) || self.calls.load(Relaxed) > self.renew_after.load(Relaxed)
    }

    pub(super) fn last_used(&self) -> Instant {
        self.created + Duration::from_nanos(self.last_used.load(Relaxed))
    }

    /// Begins a renewal. Returns the number of calls since the last one.
    pub(super) fn begin_renewal(&self) -> u32 {
        self.expired.store(false, Relaxed);
        let calls = self.calls.swap(0, Relaxed);
        if calls > 0 {
            self.last_used.store(nanos(self.created.elapsed()), Relaxed);
        }
        calls
    }

    pub(super) fn set_renew_after(&self, calls: u32) {
        self.renew_after.store(calls, Relaxed);
    }
}
