//! Evicts services that are no longer called.

use std::{
    sync::{
        Arc, PoisonError, Weak,
        atomic::Ordering::{Acquire, Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{Mesh, ServiceName, discovery::ServiceState, forwarding::service_state};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    counter::increment,
    limits::Limits,
    observe::ejection_log,
    services::{ServiceIndex, Services, target::Target},
};

/// Minimum interval between evictions that make room. Each of them visits every service while requests for new
/// services wait.
const MIN_EVICTION_INTERVAL: Duration = Duration::from_secs(1);
/// Divisor of the idle timeout for evictions from a full table.
const PRESSURE_DIVISOR: u32 = 10;

impl Services {
    /// Creates the table, and starts periodic eviction and the ejection log, which run until the table is
    /// dropped. Must be called within a tokio runtime.
    pub fn start(mesh: Mesh, limits: Limits) -> Arc<Self> {
        let services = Arc::new(Self::new(mesh, limits));
        tokio::spawn(evict_idle(Arc::downgrade(&services), limits.service_idle));
        tokio::spawn(ejection_log::log(Arc::downgrade(&services)));
        services
    }

    /// Makes room by evicting undeclared names, regardless of their last requests, and services that were idle for a
    /// fraction of the idle timeout ([`PRESSURE_DIVISOR`]). Returns whether there is room.
    pub(crate) fn make_room(&self, index: &mut ServiceIndex) -> bool {
        let now = Instant::now();
        if index
            .last_eviction
            .is_some_and(|last_eviction| now.duration_since(last_eviction) < MIN_EVICTION_INTERVAL)
        {
            return false;
        }
        index.last_eviction = Some(now);
        let idle_for = self.limits.service_idle / PRESSURE_DIVISOR;
        self.evict(index, |target| {
            let is_pinned = target.is_pinned.load(Acquire);
            !is_pinned
                && (matches!(*service_state(&target.handle), ServiceState::Unknown)
                    || target.is_idle(now, idle_for))
        });
        let max = self.max.load(Relaxed);
        let room = index.by_name.len() < max;
        if !room {
            tracing::warn!(
                services = max,
                option = self.limits.services_option,
                "the table of services is full, and all were called recently; raise the option, or run another proxy"
            );
        }
        room
    }

    fn evict(&self, index: &mut ServiceIndex, is_due: impl Fn(&Target) -> bool) {
        let due = index.by_name.iter().filter(|(_, target)| is_due(target)).map(|(name, _)| name.clone());
        for name in due.collect::<Vec<ServiceName>>() {
            if let Some(target) = index.remove(&name) {
                self.evicted.add(&target.metrics);
                *self.evicted_calls.lock().unwrap_or_else(PoisonError::into_inner) += target.handle.stats();
                increment(&self.evictions);
            }
        }
    }
}

/// Evicts idle services periodically.
async fn evict_idle(services: Weak<Services>, idle_for: Duration) {
    let mut ticks = interval((idle_for / 4).clamp(Duration::from_millis(10), Duration::from_secs(30)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = ticks.tick().await;
        let Some(services) = services.upgrade() else { return };
        let mut index = services.index.write().unwrap_or_else(PoisonError::into_inner);
        services.evict(&mut index, |target| target.is_idle(now, idle_for));
    }
}
