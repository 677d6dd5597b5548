use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::Region;
use tokio::{sync::OwnedMutexGuard, time::Instant};

/// The office of checker of every region.
#[derive(Debug)]
pub(super) struct Seats {
    by_region: Mutex<HashMap<Region, Seat>>,
    /// What terms are counted from. Those of two processes must differ, or a report to the one before would pass for one
    /// to this; drawn, since every process in a container has the same number. The standard library's hash seeds are
    /// random enough.
    first_term: u64,
    began: Instant,
}

#[derive(Debug)]
struct Seat {
    /// Whom it is given to is first in this lock's queue.
    queue: Arc<tokio::sync::Mutex<()>>,
    /// The office as it is held now.
    term: Option<u64>,
    /// How often it was given.
    given: u64,
    vacant_since: Instant,
}

/// The office while it is held; dropping it gives it to the next.
#[derive(Debug)]
pub(super) struct Office {
    seats: Arc<Seats>,
    region: Region,
    pub(super) term: u64,
    _first: OwnedMutexGuard<()>,
}

impl Default for Seats {
    fn default() -> Self {
        let first_term = RandomState::new().hash_one(());
        Self { by_region: Mutex::default(), first_term, began: Instant::now() }
    }
}

impl Seats {
    /// Waits until it is this applicant's turn.
    pub(super) async fn take(self: Arc<Self>, region: Region) -> Office {
        let queue =
            Arc::clone(&self.lock().entry(region.clone()).or_insert_with(|| Seat::vacant(self.began)).queue);
        let first = queue.lock_owned().await;
        let mut seats = self.lock();
        let seat = seats.entry(region.clone()).or_insert_with(|| Seat::vacant(self.began));
        seat.given += 1;
        let term = self.first_term.wrapping_add(seat.given);
        seat.term = Some(term);
        drop(seats);
        Office { seats: self, region, term, _first: first }
    }

    /// Whether the office of a region is held under this term.
    pub(super) fn holds(&self, region: &Region, term: u64) -> bool {
        self.lock().get(region).is_some_and(|seat| seat.term == Some(term))
    }

    /// How long nobody has held the office of a region; zero where somebody does.
    pub(super) fn vacant_for(&self, region: &Region, now: Instant) -> Duration {
        match self.lock().get(region) {
            Some(Seat { term: Some(_), .. }) => Duration::ZERO,
            Some(seat) => now.saturating_duration_since(seat.vacant_since),
            None => now.saturating_duration_since(self.began),
        }
    }

    /// How many offices are held.
    pub(super) fn held(&self) -> usize {
        self.lock().values().filter(|seat| seat.term.is_some()).count()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Region, Seat>> {
        self.by_region.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    fn vacant(since: Instant) -> Self {
        Self { queue: Arc::default(), term: None, given: 0, vacant_since: since }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        if let Some(seat) = self.seats.lock().get_mut(&self.region) {
            seat.term = None;
            seat.vacant_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_office_has_one_holder_and_then_the_next() {
        let seats = Arc::<Seats>::default();
        let first = seats.clone().take(region("eu")).await;
        let other = seats.clone().take(region("us")).await;
        let mut second = waiting(seats.clone().take(region("eu"))).await;
        assert!(
            seats.holds(&region("eu"), first.term) && !seats.holds(&region("us"), first.term.wrapping_add(1))
        );
        let before = first.term;
        drop(first);
        let second = (&mut second).await;
        assert!(!seats.holds(&region("eu"), before), "what the one before says no longer counts");
        assert!(seats.holds(&region("eu"), second.term));
        assert_eq!(seats.held(), 2);
        drop((second, other));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(seats.vacant_for(&region("eu"), Instant::now()), Duration::from_secs(61));
    }

    #[tokio::test]
    async fn a_term_of_one_process_is_none_of_the_next() {
        let (old, new) = (Arc::<Seats>::default(), Arc::<Seats>::default());
        let (before, after) = (old.take(region("eu")).await, new.clone().take(region("eu")).await);
        assert!(new.holds(&region("eu"), after.term) && !new.holds(&region("eu"), before.term));
    }

    /// The future, which has been polled once and is not ready.
    async fn waiting<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
        let mut future = Box::pin(future);
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut future).await.is_err());
        future
    }
}
