use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_rib::Commit;
use tokio::sync::watch;

/// How many commits are kept for subscribers that start late or fall behind.
const MAX_COMMITS: usize = 4096;
/// How many bytes of keys and values they may hold.
const MAX_BYTES: usize = 32 << 20;

/// A subscriber asks for commits that are no longer kept; it has to load everything and subscribe again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {after} is too far back: commits are kept from {oldest}; load everything again")]
pub struct Behind {
    /// The last revision that the subscriber has.
    pub after: u64,
    /// The oldest revision that it could still get.
    pub oldest: u64,
}

/// The newest commits, numbered without gap.
#[derive(Debug)]
struct Recent {
    /// The revision of the first one kept; one above the newest when none is.
    first: u64,
    commits: VecDeque<Commit>,
    bytes: usize,
}

/// How far a history is.
#[derive(Clone, Copy, Debug)]
struct Newest {
    revision: u64,
    /// Nothing follows.
    closed: bool,
}

/// Publishes commits to subscribers.
#[derive(Debug)]
pub(crate) struct History {
    recent: Arc<Mutex<Recent>>,
    newest: watch::Sender<Newest>,
}

impl History {
    /// A history that begins after `revision`.
    pub(crate) fn after(revision: u64) -> Self {
        let recent = Recent { first: revision + 1, commits: VecDeque::new(), bytes: 0 };
        let newest = watch::Sender::new(Newest { revision, closed: false });
        Self { recent: Arc::new(Mutex::new(recent)), newest }
    }

    /// The newest published revision.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.borrow().revision
    }

    /// Publishes the commits that follow the newest, in order.
    pub(crate) fn publish(&self, commits: Vec<Commit>) {
        let Some(newest) = commits.last().map(|commit| commit.revision) else { return };
        let mut recent = lock(&self.recent);
        for commit in commits {
            recent.bytes += weight(&commit);
            recent.commits.push_back(commit);
        }
        while recent.commits.len() > MAX_COMMITS || recent.bytes > MAX_BYTES {
            let Some(dropped) = recent.commits.pop_front() else { break };
            recent.bytes -= weight(&dropped);
            recent.first = dropped.revision + 1;
        }
        drop(recent);
        self.newest.send_modify(|now| now.revision = newest);
    }

    /// Nothing will be published any more: subscribers come to their end.
    pub(crate) fn close(&self) {
        self.newest.send_modify(|now| now.closed = true);
    }

    /// Every commit after `after`, past and future.
    pub(crate) fn subscribe(&self, after: u64) -> Commits {
        Commits { recent: self.recent.clone(), newest: self.newest.subscribe(), after }
    }
}

fn weight(commit: &Commit) -> usize {
    commit.changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |value| value.len())).sum()
}

fn lock(recent: &Mutex<Recent>) -> MutexGuard<'_, Recent> {
    // Nothing that runs under the lock can leave it half changed but a failed allocation, which ends the process.
    recent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscription to the commits of a store.
#[derive(Debug)]
pub struct Commits {
    recent: Arc<Mutex<Recent>>,
    newest: watch::Receiver<Newest>,
    after: u64,
}

impl Commits {
    /// The next commit, or `None` once the store is closed and everything is read. Cancel safe.
    ///
    /// # Errors
    /// [`Behind`] when the next commit is no longer kept. It stays so: load everything and subscribe again.
    pub async fn next(&mut self) -> Result<Option<Commit>, Behind> {
        loop {
            let closed = self.newest.borrow_and_update().closed;
            if let Some(commit) = self.kept()? {
                self.after = commit.revision;
                return Ok(Some(commit));
            }
            if closed || self.newest.changed().await.is_err() {
                return self.kept().inspect(|commit| self.after += u64::from(commit.is_some()));
            }
        }
    }

    fn kept(&self) -> Result<Option<Commit>, Behind> {
        let recent = lock(&self.recent);
        match (self.after + 1).checked_sub(recent.first) {
            None => Err(Behind { after: self.after, oldest: recent.first }),
            Some(position) => {
                Ok(usize::try_from(position).ok().and_then(|at| recent.commits.get(at)).cloned())
            }
        }
    }
}
