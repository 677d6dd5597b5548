//! Connections to the virtual address of a service: how many may begin, and when those that are open have to end.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_edge::{counter::increment, shutdown::Shutdown};
use fairmesh_model::{Label, Placement};
use tokio::time::Instant;

use crate::connection_rate::ConnectionRate;

/// Time limit of open connections after their service was moved away from this replica, if the move ends them.
const MOVED_DRAIN: Duration = Duration::from_secs(8);

/// Connections to the virtual address of a service.
#[derive(Debug)]
pub(crate) struct ServiceConnections {
    rate: ConnectionRate,
    refused: AtomicU64,
    /// Whether metrics show the service by name, as of its first refusal.
    is_labelled: OnceLock<bool>,
    /// When open connections have to end; another one for those that come after a move.
    shutdown: Mutex<Arc<Shutdown>>,
}

impl ServiceConnections {
    /// No connections yet; `whole` is the shutdown of the replica.
    pub(crate) fn new(whole: &Arc<Shutdown>) -> Self {
        Self {
            rate: ConnectionRate::default(),
            refused: AtomicU64::new(0),
            is_labelled: OnceLock::new(),
            shutdown: Mutex::new(part_of(whole)),
        }
    }

    /// Applies a placement at a replica of this backend, if it has one. Must be called within a tokio runtime.
    pub(crate) fn apply(&self, placement: &Placement, backend: Option<&Label>, whole: &Arc<Shutdown>) {
        self.rate.set(placement.connection_limit.as_ref().map(|limit| limit.per_second));
        if !backend.is_some_and(|backend| placement.ends_connections_at(backend)) {
            return;
        }
        let mut shutdown = self.lock();
        if has_clones(&shutdown) {
            std::mem::replace(&mut *shutdown, part_of(whole)).start(MOVED_DRAIN);
        }
    }

    /// Ends the limit of a placement that is no more.
    pub(crate) fn unlimit(&self) {
        self.rate.set(None);
    }

    /// Whether connections are open that no move has ended.
    pub(crate) fn is_open(&self) -> bool {
        has_clones(&self.lock())
    }

    /// Lets a connection begin, and returns by which shutdown it ends; `None` beyond the limit.
    pub(crate) fn enter(&self, now: Instant) -> Option<Arc<Shutdown>> {
        self.rate.admits(now).then(|| Arc::clone(&self.lock()))
    }

    /// Counts a connection beyond the limit: by its service if that is labelled, else among `others`. `label` decides once.
    pub(crate) fn count_refused(&self, label: impl FnOnce() -> bool, others: &AtomicU64) {
        increment(if *self.is_labelled.get_or_init(label) { &self.refused } else { others });
    }

    /// Connections that were refused, where metrics show the service by name.
    pub(crate) fn labelled(&self) -> Option<u64> {
        self.is_labelled.get().filter(|is_labelled| **is_labelled).map(|_| self.refused.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Shutdown>> {
        self.shutdown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each open connection has a clone.
fn has_clones(shutdown: &Arc<Shutdown>) -> bool {
    Arc::strong_count(shutdown) > 1
}

fn part_of(whole: &Arc<Shutdown>) -> Arc<Shutdown> {
    Arc::new(Shutdown::of_some(Arc::clone(whole)))
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{ConnectionLimit, PlacementPin, Zone};

    use super::*;

    fn placement(backend: &str, ends_connections: bool) -> Placement {
        let zone = Zone::new("a").unwrap();
        Placement {
            home_zone: zone.clone(),
            zones: [(zone, [Label::new(backend).unwrap()].into())].into(),
            added: 0,
            pinned: Some(PlacementPin { ends_connections, ..PlacementPin::default() }),
            connection_limit: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lossy_move_ends_connections_here_and_no_others() {
        let whole = Arc::<Shutdown>::default();
        let (here, connections) = (Label::new("here").unwrap(), ServiceConnections::new(&whole));
        let apply = |placement| connections.apply(&placement, Some(&here), &whole);
        let open = connections.enter(Instant::now()).unwrap();
        for stays in [placement("here", true), placement("other", false)] {
            apply(stays);
            assert!(!open.started().is_cancelled());
        }
        let began = Instant::now();
        apply(placement("other", true));
        assert!(open.started().is_cancelled() && !whole.started().is_cancelled());
        open.deadline_passed().await;
        assert_eq!(began.elapsed(), MOVED_DRAIN);
        let later = connections.enter(Instant::now()).unwrap();
        assert!(!later.started().is_cancelled(), "the service has moved back");
        whole.start(Duration::from_secs(1));
        assert!(later.started().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn limit_of_a_placement_bounds_what_begins_and_refusals_are_counted_once() {
        let whole = Arc::<Shutdown>::default();
        let connections = ServiceConnections::new(&whole);
        let admitted = || (0..50).filter(|_| connections.enter(Instant::now()).is_some()).count();
        assert_eq!(admitted(), 50);
        let limit = ConnectionLimit {
            per_second: 4,
            reason: String::new(),
            at_ms: 0,
            is_automatic: false,
            first_per_second: 4,
        };
        let limited = Placement { connection_limit: Some(limit), ..placement("here", false) };
        connections.apply(&limited, None, &whole);
        assert_eq!(admitted(), 4);
        let others = AtomicU64::new(0);
        assert_eq!(connections.labelled(), None);
        connections.count_refused(|| true, &others);
        connections.count_refused(|| false, &others);
        assert_eq!((connections.labelled(), others.load(Relaxed)), (Some(2), 0));
        connections.apply(&placement("here", false), None, &whole);
        assert_eq!(admitted(), 50);
    }
}
