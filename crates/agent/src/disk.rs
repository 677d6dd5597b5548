//! Saves what changed, soon and together, off the workers that serve.

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
    cache::{Cache, CacheError, Saved},
    upstream::State,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{error::AgentError, feed::Shared};

/// The least time between two rounds of saving: a burst of changes is written once.
const SAVE_EVERY: Duration = Duration::from_millis(200);
/// How many times as long as a round took to wait after it: at most a twentieth of the time goes into saving.
const SAVE_REST: u32 = 19;
/// How long to wait after the disk refused.
const SAVE_RETRY: Duration = Duration::from_secs(5);

/// From how many bytes on what is let go is given back to the system.
const TRIM_ABOVE: usize = 1 << 20;

/// The folder of copies and what is to be done there.
#[derive(Debug)]
pub(crate) struct Disk {
    cache: Arc<Cache>,
    jobs: Mutex<BTreeMap<Prefix, Job>>,
    wake: Notify,
    pub(crate) failures: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Save,
    Remove,
}

/// The locked list of what is to be done; the saver is woken when it is released.
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
    /// Opens the folder, reads what is there, and leaves word of where this agent runs.
    pub(crate) async fn open(folder: PathBuf, location: Location) -> Result<(Self, Vec<Saved>), AgentError> {
        let open = move || {
            let cache = Cache::open(folder)?;
            let saved = cache.load_all()?;
            if let Err(error) = cache.save_location(&location) {
                // No reason to leave programs without what is held.
                tracing::warn!(%error, "programs that start while no agent runs will not know where they are");
            }
            Ok::<_, CacheError>((cache, saved))
        };
        // Joining fails only when `open` panics, which then goes on here.
        let (cache, saved) = tokio::task::spawn_blocking(open).await.unwrap_or_else(|panicked| {
            std::panic::resume_unwind(panicked.into_panic());
        })?;
        let disk = Self {
            cache: Arc::new(cache),
            jobs: Mutex::default(),
            wake: Notify::new(),
            failures: AtomicU64::new(0),
        };
        Ok((disk, saved))
    }

    /// The folder of copies.
    pub(crate) fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache)
    }

    pub(crate) fn jobs(&self) -> Jobs<'_> {
        // Nothing that runs under the lock panics.
        Jobs { jobs: self.jobs.lock().unwrap_or_else(PoisonError::into_inner), wake: &self.wake }
    }
}

/// One round of saving.
#[derive(Debug)]
struct Round {
    jobs: BTreeMap<Prefix, Job>,
    save: Vec<Saved>,
    /// Where everything stands once this round is on disk; `None` while the upstream is away and nothing is certain.
    mark: Option<(Revision, SystemTime)>,
}

impl Shared {
    /// Saves until `stopping`, and what is left then.
    pub(crate) async fn save_all(
        self: Arc<Self>,
        upstream: watch::Receiver<State>,
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

    /// Returns whether all of it is on disk; what is not is tried again.
    async fn save_round(&self, connected: bool) -> bool {
        let round = self.round(connected);
        let cache = self.disk.cache.clone();
        let jobs = round.jobs.clone();
        let writing = move || write(&cache, &round).map(|()| round);
        let error = match tokio::task::spawn_blocking(writing).await {
            Ok(Ok(round)) => {
                let saves = round.save.iter();
                let freed: usize = saves.map(|saved| self.maps.saved(&saved.prefix, &saved.entries)).sum();
                drop(round);
                if freed > TRIM_ABOVE {
                    // Fails for no reason but the end of the runtime.
                    let _ = tokio::task::spawn_blocking(fairmesh_shared_memory::trim).await;
                }
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        };
        tracing::warn!(error, "what is held is not saved; a restart without control plane would miss it");
        self.disk.failures.fetch_add(1, Ordering::Relaxed);
        let mut again = self.disk.jobs();
        for (prefix, job) in jobs {
            again.jobs.entry(prefix).or_insert(job);
        }
        false
    }

    fn round(&self, connected: bool) -> Round {
        let (jobs, revision) = {
            let mut jobs = self.disk.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut *jobs), self.node.revision())
        };
        let at = wall_clock();
        let saves = jobs.iter().filter(|(_, job)| **job == Job::Save);
        let save = saves.map(|(prefix, _)| {
            let (revision, entries) = self.node.read(std::slice::from_ref(prefix));
            let entries = self.maps.to_save(prefix).unwrap_or(entries);
            Saved { prefix: prefix.clone(), revision, at, entries }
        });
        let save = save.collect();
        let mark = (connected && self.node.store().is_some()).then_some((revision, at));
        Round { jobs, save, mark }
    }
}

/// How long to let changes gather after a round that took so long. Whole prefixes are written, so that where they are
/// large and change all the time, saving would otherwise keep the disk busy.
fn pause(took: Duration) -> Duration {
    (took * SAVE_REST).max(SAVE_EVERY)
}

fn write(cache: &Cache, round: &Round) -> Result<(), CacheError> {
    for (prefix, _) in round.jobs.iter().filter(|(_, job)| **job == Job::Remove) {
        cache.remove(prefix)?;
    }
    cache.save_all(&round.save)?;
    round.mark.map_or(Ok(()), |(revision, at)| cache.mark(revision, at))
}

/// The time of day, which only files that outlive a restart need.
#[allow(
    clippy::disallowed_methods,
    reason = "ages of files are kept over restarts, which no monotonic clock is"
)]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_is_left_alone_for_most_of_the_time_and_a_fast_one_still_gathers_bursts() {
        assert_eq!(pause(Duration::from_millis(1)), SAVE_EVERY);
        let slow = Duration::from_secs(1);
        assert!(slow <= (slow + pause(slow)) / 20);
    }
}
