//! Saves changed prefixes to disk in batches, outside the worker threads that serve requests.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use fairmesh_model::{Location, Prefix, Revision};
use fairmesh_rib::{
    disk_cache::{Cache, CacheError, SavedCopy},
    follower::FollowerState,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{error::AgentError, state::AgentState};

/// Minimum time between two rounds of saving, so that a burst of changes is written only once.
const SAVE_INTERVAL: Duration = Duration::from_millis(200);
/// Pause after a round as a multiple of its duration, so that saving takes at most a twentieth of the time.
const SAVE_PAUSE_FACTOR: u32 = 19;
/// Pause after a round that failed.
const SAVE_RETRY: Duration = Duration::from_secs(5);

/// Minimum time between two sweeps of retired copies. Each sweep lists the directory.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum size of freed memory for which memory is returned to the system.
const MIN_TRIM_BYTES: usize = 1 << 20;

/// The state directory and its pending jobs.
#[derive(Debug)]
pub(crate) struct Disk {
    cache: Arc<Cache>,
    jobs: Mutex<BTreeMap<Prefix, Job>>,
    wake: Notify,
    /// Time of the last sweep of retired copies.
    swept: Mutex<Instant>,
    pub(crate) failures: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Save,
    /// The copy stays on disk for a while, although the prefix is no longer followed.
    Retire,
    Remove,
}

/// The locked list of pending jobs. Dropping it wakes the saver.
#[derive(Debug)]
pub(crate) struct Jobs<'a> {
    jobs: MutexGuard<'a, BTreeMap<Prefix, Job>>,
    wake: &'a Notify,
}

impl Jobs<'_> {
    pub(crate) fn save(&mut self, prefixes: impl IntoIterator<Item = Prefix>) {
        self.jobs.extend(prefixes.into_iter().map(|prefix| (prefix, Job::Save)));
    }

    #[cfg(test)]
    pub(crate) fn to_save(&self) -> Vec<Prefix> {
        let saves = self.jobs.iter().filter(|(_, job)| **job == Job::Save);
        saves.map(|(prefix, _)| prefix.clone()).collect()
    }

    pub(crate) fn retire(&mut self, prefix: &Prefix) {
        self.jobs.insert(prefix.clone(), Job::Retire);
    }

    pub(crate) fn remove(&mut self, prefix: &Prefix) {
        self.jobs.insert(prefix.clone(), Job::Remove);
    }
}

impl Drop for Jobs<'_> {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Disk {
    /// Opens the directory, loads its copies, and saves the agent's location.
    pub(crate) async fn open(
        folder: PathBuf,
        location: Location,
    ) -> Result<(Self, Vec<SavedCopy>), AgentError> {
        let open = move || {
            let cache = Cache::open(folder)?;
            let saved = cache.load_all()?;
            cache.remove_old_retired(wall_clock())?;
            if let Err(error) = cache.save_location(&location) {
                // Saved copies are still worth serving.
                tracing::warn!(%error, "cannot save the location; programs started without an agent lack it");
            }
            Ok::<_, CacheError>((cache, saved))
        };
        // Joining fails only if `open` panicked; the panic continues here.
        let (cache, saved) = tokio::task::spawn_blocking(open).await.unwrap_or_else(|panicked| {
            std::panic::resume_unwind(panicked.into_panic());
        })?;
        let disk = Self {
            cache: Arc::new(cache),
            jobs: Mutex::default(),
            wake: Notify::new(),
            swept: Mutex::new(Instant::now()),
            failures: AtomicU64::new(0),
        };
        Ok((disk, saved))
    }

    /// The state directory.
    pub(crate) fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache)
    }

    /// Returns whether to sweep retired copies now, and if so records the time of the sweep.
    fn takes_sweep(&self, now: Instant) -> bool {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = now.duration_since(*swept) >= SWEEP_INTERVAL;
        if is_due {
            *swept = now;
        }
        is_due
    }

    pub(crate) fn jobs(&self) -> Jobs<'_> {
        // No code that holds the lock panics.
        Jobs { jobs: self.jobs.lock().unwrap_or_else(PoisonError::into_inner), wake: &self.wake }
    }
}

/// One round of saving.
#[derive(Debug)]
struct SaveRound {
    jobs: BTreeMap<Prefix, Job>,
    save: Vec<SavedCopy>,
    /// Whether this round removes old retired copies.
    sweeps: bool,
    /// Revision of all copies once this round is on disk. `None` while the upstream is disconnected, because the
    /// revision is then uncertain.
    mark: Option<(Revision, SystemTime)>,
}

impl AgentState {
    /// Saves until `stopping`, and once more at the end.
    pub(crate) async fn save_all(
        self: Arc<Self>,
        upstream: watch::Receiver<FollowerState>,
        stopping: CancellationToken,
    ) {
        let connected = || upstream.borrow().connected;
        while !stopping.is_cancelled() {
            tokio::select! {
                () = self.disk.wake.notified() => {}
                () = stopping.cancelled() => break,
            }
            let began = Instant::now();
            let wait = match self.save_round(connected()).await {
                true => pause(began.elapsed()),
                false => SAVE_RETRY,
            };
            tokio::select! {
                () = sleep_until(Instant::now() + wait) => {}
                () = stopping.cancelled() => {}
            }
        }
        self.save_round(connected()).await;
    }

    /// Returns whether the whole round is on disk. Failed jobs are queued again.
    async fn save_round(&self, connected: bool) -> bool {
        let round = self.round(connected);
        let cache = self.disk.cache.clone();
        let jobs = round.jobs.clone();
        let writing = move || write(&cache, &round).map(|()| round);
        let error = match tokio::task::spawn_blocking(writing).await {
            Ok(Ok(round)) => {
                let saves = round.save.iter();
                let freed: usize =
                    saves.map(|saved| self.maps.drop_saved_values(&saved.prefix, &saved.entries)).sum();
                drop(round);
                if freed > MIN_TRIM_BYTES {
                    // Fails only when the runtime shuts down.
                    let _ = tokio::task::spawn_blocking(fairmesh_shared_memory::trim).await;
                }
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        };
        tracing::warn!(
            error,
            "cannot save copies; a restart without a control plane would lose recent changes"
        );
        self.disk.failures.fetch_add(1, Ordering::Relaxed);
        let mut again = self.disk.jobs();
        for (prefix, job) in jobs {
            again.jobs.entry(prefix).or_insert(job);
        }
        false
    }

    fn round(&self, connected: bool) -> SaveRound {
        let (jobs, revision) = {
            let mut jobs = self.disk.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut *jobs), self.node.revision())
        };
        let at = wall_clock();
        let saves = jobs.iter().filter(|(_, job)| **job == Job::Save);
        let save = saves.map(|(prefix, _)| {
            let (revision, entries) = self.node.read(std::slice::from_ref(prefix));
            let entries = self.maps.records_to_save(prefix).unwrap_or(entries);
            SavedCopy { prefix: prefix.clone(), revision, at, entries }
        });
        let save = save.collect();
        let mark = (connected && self.node.store().is_some()).then_some((revision, at));
        let sweeps = self.disk.takes_sweep(Instant::now());
        SaveRound { jobs, save, sweeps, mark }
    }
}

/// Returns the pause after a round of this duration. Whole prefixes are written, so large prefixes that change
/// constantly would otherwise keep the disk busy.
fn pause(took: Duration) -> Duration {
    (took * SAVE_PAUSE_FACTOR).max(SAVE_INTERVAL)
}

fn write(cache: &Cache, round: &SaveRound) -> Result<(), CacheError> {
    let prefixes =
        |wanted: Job| round.jobs.iter().filter(move |(_, job)| **job == wanted).map(|(prefix, _)| prefix);
    prefixes(Job::Remove).try_for_each(|prefix| cache.remove(prefix))?;
    // Retire before the next checkpoint, since the checkpoint no longer covers these prefixes.
    prefixes(Job::Retire).try_for_each(|prefix| cache.retire(prefix))?;
    if round.sweeps {
        cache.remove_old_retired(wall_clock())?;
    }
    cache.save_all(&round.save)?;
    round.mark.map_or(Ok(()), |(revision, at)| cache.checkpoint(revision, at))
}

/// The time of day, needed only for files that outlive a restart.
#[allow(
    clippy::disallowed_methods,
    reason = "file ages must survive restarts, and a monotonic clock does not"
)]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_saves_take_at_most_5_percent_of_time() {
        assert_eq!(pause(Duration::from_millis(1)), SAVE_INTERVAL);
        let slow = Duration::from_secs(1);
        assert!(slow <= (slow + pause(slow)) / 20);
    }
}
