use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::Region;
use tokio::{
    sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Maximum number of remembered regions without leader and candidates, because a peer can name any region.
pub(super) const MAX_REGIONS: usize = 1024;
/// Maximum number of candidates in all regions. Each candidate holds a call open.
pub(super) const MAX_CANDIDATES: usize = 65_536;

/// The elections of all regions' checkers.
#[derive(Debug)]
pub(super) struct Elections {
    by_region: Mutex<HashMap<Region, RegionElection>>,
    places: Arc<Semaphore>,
    /// First term number. It is random, so that this process accepts no report for a term of a previous
    /// process. A process id would not suffice, since every process in a container may have the same one. The
    /// seeds of the standard library's hasher are random enough.
    first_term: u64,
    began: Instant,
}

#[derive(Debug)]
struct RegionElection {
    /// Queue of candidates. The candidate that holds the lock is the leader.
    queue: Arc<tokio::sync::Mutex<()>>,
    /// The current term; `None` without a leader.
    term: Option<u64>,
    /// Number of elections so far.
    elections: u64,
    leaderless_since: Instant,
}

/// The leadership of a region. Dropping it elects the next candidate.
#[derive(Debug)]
pub(super) struct LeaderGuard {
    elections: Arc<Elections>,
    region: Region,
    pub(super) term: u64,
    _first: OwnedMutexGuard<()>,
}

impl Default for Elections {
    fn default() -> Self {
        let first_term = RandomState::new().hash_one(());
        let places = Arc::new(Semaphore::new(MAX_CANDIDATES));
        Self { by_region: Mutex::default(), places, first_term, began: Instant::now() }
    }
}

impl Elections {
    /// Admits another candidate for as long as the permit lives. `None` if there are already
    /// [`MAX_CANDIDATES`].
    pub(super) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Number of candidates, elected or not.
    pub(super) fn candidates(&self) -> usize {
        MAX_CANDIDATES - self.places.available_permits()
    }

    /// Waits until this candidate is elected.
    pub(super) async fn campaign(self: Arc<Self>, region: Region) -> LeaderGuard {
        let queue = {
            let mut elections = self.lock();
            make_room(&mut elections);
            let election = elections.entry(region.clone());
            Arc::clone(&election.or_insert_with(|| RegionElection::leaderless(self.began)).queue)
        };
        let first = queue.lock_owned().await;
        let mut elections = self.lock();
        let election =
            elections.entry(region.clone()).or_insert_with(|| RegionElection::leaderless(self.began));
        election.elections += 1;
        let term = self.first_term.wrapping_add(election.elections);
        election.term = Some(term);
        drop(elections);
        LeaderGuard { elections: self, region, term, _first: first }
    }

    /// Whether a region has a leader with this term.
    pub(super) fn holds(&self, region: &Region, term: u64) -> bool {
        self.lock().get(region).is_some_and(|election| election.term == Some(term))
    }

    /// Time for which a region has had no leader; zero with a leader.
    pub(super) fn leaderless_for(&self, region: &Region, now: Instant) -> Duration {
        match self.lock().get(region) {
            Some(RegionElection { term: Some(_), .. }) => Duration::ZERO,
            Some(election) => now.saturating_duration_since(election.leaderless_since),
            None => now.saturating_duration_since(self.began),
        }
    }

    /// Number of regions with a leader.
    pub(super) fn leaders(&self) -> usize {
        self.lock().values().filter(|election| election.term.is_some()).count()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Region, RegionElection>> {
        self.by_region.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// If too many regions are remembered, forgets the region that has been without leader and candidates for longest.
fn make_room(elections: &mut HashMap<Region, RegionElection>) {
    if elections.len() < MAX_REGIONS {
        return;
    }
    let unused = elections.iter().filter(|(_, election)| Arc::strong_count(&election.queue) == 1);
    let oldest =
        unused.min_by_key(|(_, election)| election.leaderless_since).map(|(region, _)| region.clone());
    if let Some(region) = oldest {
        elections.remove(&region);
    }
}

impl RegionElection {
    fn leaderless(since: Instant) -> Self {
        Self { queue: Arc::default(), term: None, elections: 0, leaderless_since: since }
    }
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        if let Some(election) = self.elections.lock().get_mut(&self.region) {
            election.term = None;
            election.leaderless_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    #[test]
    fn number_of_health_checker_candidates_is_bounded() {
        let elections = Elections::default();
        let admitted: Vec<_> = std::iter::from_fn(|| elections.admit()).collect();
        assert_eq!((admitted.len(), elections.candidates()), (MAX_CANDIDATES, MAX_CANDIDATES));
        drop(admitted);
        assert_eq!(elections.candidates(), 0);
        assert!(elections.admit().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn election_forgets_regions_without_leader_and_candidates() {
        let elections = Arc::<Elections>::default();
        let kept = elections.clone().campaign(region("eu")).await;
        for i in 0..2 * MAX_REGIONS {
            drop(elections.clone().campaign(region(&format!("r{i}"))).await);
        }
        assert_eq!(elections.lock().len(), MAX_REGIONS);
        assert!(elections.holds(&region("eu"), kept.term));
    }

    #[tokio::test(start_paused = true)]
    async fn region_has_only_one_elected_health_checker() {
        let elections = Arc::<Elections>::default();
        let first = elections.clone().campaign(region("eu")).await;
        let other = elections.clone().campaign(region("us")).await;
        let mut second = waiting(elections.clone().campaign(region("eu"))).await;
        assert!(
            elections.holds(&region("eu"), first.term)
                && !elections.holds(&region("us"), first.term.wrapping_add(1))
        );
        let before = first.term;
        drop(first);
        let second = (&mut second).await;
        assert!(!elections.holds(&region("eu"), before), "the previous term is no longer valid");
        assert!(elections.holds(&region("eu"), second.term));
        assert_eq!(elections.leaders(), 2);
        drop((second, other));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(elections.leaderless_for(&region("eu"), Instant::now()), Duration::from_secs(61));
    }

    #[tokio::test]
    async fn election_term_of_previous_process_is_not_valid_in_next_one() {
        let (old, new) = (Arc::<Elections>::default(), Arc::<Elections>::default());
        let (before, after) = (old.campaign(region("eu")).await, new.clone().campaign(region("eu")).await);
        assert!(new.holds(&region("eu"), after.term) && !new.holds(&region("eu"), before.term));
    }

    /// Polls a future once, which must not complete, and returns it.
    async fn waiting<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
        let mut future = Box::pin(future);
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut future).await.is_err());
        future
    }
}
