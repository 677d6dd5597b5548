//! Lets go of services that are not called any more.

use std::{
    sync::{Arc, PoisonError, Weak, atomic::Ordering::Acquire},
    time::Duration,
};

use fairmesh_client::{Mesh, ServiceName, core::View};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    forward::{
        services::{ServiceIndex, Services},
        target::Target,
    },
    limits::Limits,
    observe::counter::increment,
};

/// How often, at most, room is looked for: every service is looked at for it, while requests for others wait.
const MIN_EVICTION_INTERVAL: Duration = Duration::from_secs(1);
/// Where there is no room, services go that were not called for this part of the time.
const PRESSURE_DIVISOR: u32 = 10;

impl Services {
    /// One that looks for idle services as long as it is held; must be called within a tokio runtime.
    pub(crate) fn start(mesh: Mesh, limits: Limits) -> Arc<Self> {
        let services = Arc::new(Self::new(mesh, limits));
        tokio::spawn(evict_idle(Arc::downgrade(&services), limits.service_idle));
        services
    }

    /// Makes room by letting go of names that turned out to be nobody's, however the requests for them ended, and of the services
    /// that were not called for longest.
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
            !is_pinned && (matches!(*target.handle.view(), View::Unknown) || target.is_idle(now, idle_for))
        });
        let room = index.by_name.len() < self.limits.services;
        if !room {
            tracing::warn!(
                services = self.limits.services,
                "no room for another service: all were called lately; raise --max-services, or run a further proxy"
            );
        }
        room
    }

    fn evict(&self, index: &mut ServiceIndex, is_due: impl Fn(&Target) -> bool) {
        let due = index.by_name.iter().filter(|(_, target)| is_due(target)).map(|(name, _)| name.clone());
        for name in due.collect::<Vec<ServiceName>>() {
            if let Some(target) = index.remove(&name) {
                self.evicted.add(&target.metrics);
                increment(&self.evictions);
            }
        }
    }
}

/// Looks for idle services now and then.
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
