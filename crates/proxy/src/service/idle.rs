//! Lets go of services that are not called any more.

use std::{
    sync::{
        Arc, PoisonError, Weak,
        atomic::Ordering::{Acquire, Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{Mesh, ServiceName, discovery::ServiceState};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Known, Services, Target};
use crate::{Limits, metrics::count};

/// How often, at most, room is looked for: every service is looked at for it, while requests for others wait.
const SEARCH: Duration = Duration::from_secs(1);
/// Where there is no room, services go that were not called for this part of the time.
const IN_NEED: u32 = 10;

/// Since when how many requests were counted, by the last look.
#[derive(Debug, Default)]
pub(super) struct Activity {
    requests: u64,
    since: Option<Instant>,
}

impl Target {
    /// Whether nothing was asked of it for so long. Looks find that out by what is counted anyway, so that requests need not say
    /// when they come.
    fn is_idle(&self, now: Instant, long: Duration) -> bool {
        let requests = self.golden.answers.classes().iter().sum();
        let mut activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        if activity.requests != requests || self.golden.under_way.load(Relaxed) > 0 {
            *activity = Activity { requests, since: Some(now) };
        }
        let since = *activity.since.get_or_insert(now);
        !self.is_kept.load(Acquire) && now.duration_since(since) >= long
    }
}

impl Services {
    /// One that looks for idle services as long as it is held; must be called within a tokio runtime.
    pub(crate) fn start(mesh: Mesh, limits: Limits) -> Arc<Self> {
        let services = Arc::new(Self::new(mesh, limits));
        tokio::spawn(look(Arc::downgrade(&services), limits.service_idle));
        services
    }

    /// Makes room by letting go of names that turned out to be nobody's, however the requests for them ended, and of the services
    /// that were not called for longest.
    pub(super) fn make_room(&self, known: &mut Known) -> bool {
        let now = Instant::now();
        if known.searched.is_some_and(|searched| now.duration_since(searched) < SEARCH) {
            return false;
        }
        known.searched = Some(now);
        let long = self.limits.service_idle / IN_NEED;
        self.let_go(known, |target| {
            let is_kept = target.is_kept.load(Acquire);
            !is_kept && (matches!(*target.handle.state(), ServiceState::Unknown) || target.is_idle(now, long))
        });
        let room = known.by_name.len() < self.limits.services;
        if !room {
            tracing::warn!(
                services = self.limits.services,
                "no room for another service: all were called lately; raise --max-services, or run a further proxy"
            );
        }
        room
    }

    fn let_go(&self, known: &mut Known, is_due: impl Fn(&Target) -> bool) {
        let due = known.by_name.iter().filter(|(_, target)| is_due(target)).map(|(name, _)| name.clone());
        for name in due.collect::<Vec<ServiceName>>() {
            if let Some(target) = known.remove(&name) {
                self.let_go.add(&target.golden);
                count(&self.idle);
            }
        }
    }
}

/// Looks for idle services now and then.
async fn look(services: Weak<Services>, long: Duration) {
    let mut ticks = interval((long / 4).clamp(Duration::from_millis(10), Duration::from_secs(30)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = ticks.tick().await;
        let Some(services) = services.upgrade() else { return };
        let mut known = services.known.write().unwrap_or_else(PoisonError::into_inner);
        services.let_go(&mut known, |target| target.is_idle(now, long));
    }
}
