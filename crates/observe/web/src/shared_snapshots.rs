//! Snapshots that pages with the same content share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{event_delta::Shown, event_streams::Make};

/// Time for which a snapshot is served.
const FRESH: Duration = Duration::from_millis(1_500);

/// The latest snapshots by key. Viewers share them, so the cost of a view does not grow with the number of its
/// viewers.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    snapshots: Mutex<HashMap<String, (Instant, Arc<Shown>)>>,
    /// Lock held while a snapshot is made. Only one is made at a time, so many viewers use at most one core.
    making: Mutex<()>,
}

impl Snapshots {
    /// Wraps `make` so that it runs at most once per [`FRESH`] for all pages with the same key. Old snapshots are
    /// dropped.
    pub(crate) fn shared(
        self: &Arc<Self>,
        key: String,
        make: impl Fn() -> Shown + Send + Sync + 'static,
    ) -> Arc<Make> {
        let all = Arc::clone(self);
        Arc::new(move || all.fresh(&key).unwrap_or_else(|| all.make_in_turn(&key, &make)))
    }

    fn make_in_turn(&self, key: &str, make: &impl Fn() -> Shown) -> Arc<Shown> {
        let _turn = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Another page may have made the snapshot meanwhile.
        if let Some(shown) = self.fresh(key) {
            return shown;
        }
        let shown = Arc::new(make());
        self.keep(key, &shown);
        shown
    }

    fn fresh(&self, key: &str) -> Option<Arc<Shown>> {
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.get(key).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, shown)| Arc::clone(shown))
    }

    fn keep(&self, key: &str, shown: &Arc<Shown>) {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.retain(|_, (at, _)| at.elapsed() < FRESH);
        snapshots.insert(key.to_owned(), (Instant::now(), Arc::clone(shown)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shared_page_snapshot_is_made_once_while_fresh() {
        let (all, made) = (Arc::<Snapshots>::default(), Arc::new(AtomicU32::new(0)));
        let shared = |key: &str| {
            let made = Arc::clone(&made);
            all.shared(key.to_owned(), move || Shown::head(&made.fetch_add(1, Relaxed)))
        };
        let (one, same, other) = (shared("a"), shared("a"), shared("b"));
        let numbers = |shown: [Arc<Shown>; 3]| shown.map(|shown| shown.since(None).unwrap());
        let expected = [0, 0, 1].map(|number| Shown::head(&number).since(None).unwrap());
        assert_eq!(numbers([one(), same(), other()]), expected);
        tokio::time::advance(FRESH).await;
        assert!(Arc::ptr_eq(&same(), &one()));
        assert_eq!(made.load(Relaxed), 3);
        assert_eq!(all.snapshots.lock().unwrap().len(), 1, "what is old is forgotten");
    }

    #[test]
    fn concurrent_pages_share_one_snapshot() {
        const PAGES: usize = 8;
        let (all, made) = (Arc::<Snapshots>::default(), Arc::new(AtomicU32::new(0)));
        let make = {
            let made = Arc::clone(&made);
            move || {
                (0..1_000).for_each(|_| std::thread::yield_now());
                Shown::head(&made.fetch_add(1, Relaxed))
            }
        };
        let (shared, begin) = (all.shared("a".to_owned(), make), std::sync::Barrier::new(PAGES));
        std::thread::scope(|scope| {
            for _ in 0..PAGES {
                scope.spawn(|| {
                    begin.wait();
                    assert_eq!(*shared(), Shown::head(&0));
                });
            }
        });
        assert_eq!(made.load(Relaxed), 1);
    }
}
