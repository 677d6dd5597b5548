use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_rib::Commit;
use tokio::sync::watch;

/// Maximum number of commits retained for subscribers that start late or fall behind.
const MAX_COMMITS: usize = 4096;
/// Maximum size of keys and values in the retained commits, in bytes.
const MAX_BYTES: usize = 32 << 20;
/// Factor by which both bounds are larger for commits that a subscriber has not read yet. A compacted subscriber must
/// load the whole store, possibly gigabytes, which blocks every write. With this factor, a subscriber may lag for
/// seconds under the heaviest stream of writes.
const UNREAD_FACTOR: usize = 8;

/// The requested commits are no longer retained. The subscriber must load the store and subscribe again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {after} is compacted: commits are retained from {oldest}; load the store again")]
pub struct Compacted {
    /// Last revision that the subscriber has read.
    pub after: u64,
    /// Oldest revision that is still available.
    pub oldest: u64,
}

/// The retained commits, by ascending revision. A store may skip revisions.
#[derive(Debug)]
struct RecentCommits {
    /// The log retains every commit with a revision greater than this one.
    after: u64,
    commits: VecDeque<Commit>,
    bytes: usize,
    /// The last revision read by each live subscriber.
    subscribers: Vec<Weak<AtomicU64>>,
}

impl RecentCommits {
    fn after(revision: u64) -> Self {
        Self { after: revision, commits: VecDeque::new(), bytes: 0, subscribers: Vec::new() }
    }

    /// Drops the oldest commits until the bounds hold.
    fn trim(&mut self) {
        self.subscribers.retain(|reader| reader.strong_count() > 0);
        let read = self.subscribers.iter().filter_map(Weak::upgrade).map(|reader| reader.load(Relaxed)).min();
        while let Some(oldest) = self.commits.front() {
            let unread = read.is_some_and(|read| read < oldest.revision);
            let times = if unread { UNREAD_FACTOR } else { 1 };
            if self.commits.len() <= times * MAX_COMMITS && self.bytes <= times * MAX_BYTES {
                return;
            }
            self.bytes -= commit_size(oldest);
            self.after = oldest.revision;
            self.commits.pop_front();
        }
    }
}

/// Newest position of a log.
#[derive(Clone, Copy, Debug)]
struct LogPosition {
    revision: u64,
    /// Whether the log is closed, so that no commit follows.
    closed: bool,
}

/// Publishes commits to subscribers.
#[derive(Debug)]
pub(crate) struct CommitLog {
    recent: Arc<Mutex<RecentCommits>>,
    newest: watch::Sender<LogPosition>,
}

impl CommitLog {
    /// Creates a log that begins after `revision`.
    pub(crate) fn after(revision: u64) -> Self {
        let recent = RecentCommits::after(revision);
        let newest = watch::Sender::new(LogPosition { revision, closed: false });
        Self { recent: Arc::new(Mutex::new(recent)), newest }
    }

    /// Newest published revision.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.borrow().revision
    }

    /// Publishes the commits after the newest one, in order.
    pub(crate) fn publish(&self, commits: Vec<Commit>) {
        let Some(newest) = commits.last().map(|commit| commit.revision) else { return };
        let mut recent = lock(&self.recent);
        for commit in commits {
            recent.bytes += commit_size(&commit);
            recent.commits.push_back(commit);
        }
        recent.trim();
        drop(recent);
        self.newest.send_modify(|now| now.revision = newest);
    }

    /// Continues after `revision` although commits up to it are unknown. Subscribers at an older revision get
    /// [`Compacted`].
    pub(crate) fn skip_to(&self, revision: u64) {
        let mut recent = lock(&self.recent);
        if revision <= self.newest() {
            return;
        }
        *recent = RecentCommits {
            subscribers: std::mem::take(&mut recent.subscribers),
            ..RecentCommits::after(revision)
        };
        drop(recent);
        self.newest.send_modify(|now| now.revision = revision);
    }

    /// Ends every subscription. Nothing may be published afterwards.
    pub(crate) fn close(&self) {
        self.newest.send_modify(|now| now.closed = true);
    }

    /// Subscribes to every commit after the revision `after`, past and future.
    pub(crate) fn subscribe(&self, after: u64) -> Commits {
        let read_up_to = Arc::new(AtomicU64::new(after));
        lock(&self.recent).subscribers.push(Arc::downgrade(&read_up_to));
        Commits { recent: self.recent.clone(), newest: self.newest.subscribe(), after, read_up_to }
    }
}

fn commit_size(commit: &Commit) -> usize {
    commit.changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |value| value.len())).sum()
}

fn lock(recent: &Mutex<RecentCommits>) -> MutexGuard<'_, RecentCommits> {
    // Only a failed allocation can panic halfway under this lock, and it ends the process.
    recent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscription to the commits of a store.
#[derive(Debug)]
pub struct Commits {
    recent: Arc<Mutex<RecentCommits>>,
    newest: watch::Receiver<LogPosition>,
    after: u64,
    /// Last revision that this subscription has read. The log retains unread commits longer.
    read_up_to: Arc<AtomicU64>,
}

impl Commits {
    /// Returns the next commit; `None` once the store is closed and every commit is read. Cancel safe.
    ///
    /// # Errors
    /// [`Compacted`] when the next commit is no longer retained. This is permanent: load the store and subscribe again.
    pub async fn next(&mut self) -> Result<Option<Commit>, Compacted> {
        loop {
            let closed = self.newest.borrow_and_update().closed;
            if let Some(commit) = self.next_retained()? {
                return Ok(Some(self.advance_to(commit)));
            }
            if closed || self.newest.changed().await.is_err() {
                return Ok(self.next_retained()?.map(|last| self.advance_to(last)));
            }
        }
    }

    fn advance_to(&mut self, commit: Commit) -> Commit {
        self.after = commit.revision;
        self.read_up_to.store(commit.revision, Relaxed);
        commit
    }

    fn next_retained(&self) -> Result<Option<Commit>, Compacted> {
        let recent = lock(&self.recent);
        if self.after < recent.after {
            return Err(Compacted { after: self.after, oldest: recent.after + 1 });
        }
        let next = recent.commits.partition_point(|commit| commit.revision <= self.after);
        Ok(recent.commits.get(next).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(revision: u64) -> Commit {
        Commit { revision, changes: vec![("/a".into(), None)] }
    }

    async fn numbers(commits: &mut Commits) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Ok(Some(commit)) = commits.next().await {
            numbers.push(commit.revision);
        }
        numbers
    }

    #[tokio::test]
    async fn commit_subscription_may_start_at_unused_revision() {
        let log = CommitLog::after(5);
        log.publish([7, 8, 12].map(commit).into());
        let mut subscribers = [5, 6, 7, 11, 12, 20].map(|after| log.subscribe(after));
        log.publish(vec![commit(21)]);
        log.close();
        let mut read = Vec::new();
        for reader in &mut subscribers {
            read.push(numbers(reader).await);
        }
        let all = [7, 8, 12, 21];
        assert_eq!(read, [&all[..], &all[..], &all[1..], &all[2..], &all[3..], &all[3..]]);
    }

    #[tokio::test]
    async fn skipping_revisions_ends_only_older_commit_subscriptions() {
        let log = CommitLog::after(5);
        log.publish(vec![commit(7)]);
        let (mut behind, mut level) = (log.subscribe(7), log.subscribe(30));
        log.skip_to(30);
        assert_eq!(behind.next().await, Err(Compacted { after: 7, oldest: 31 }));
        log.publish(vec![commit(40)]);
        assert_eq!(behind.next().await, Err(Compacted { after: 7, oldest: 31 }), "compaction is permanent");
        assert_eq!(level.next().await, Ok(Some(commit(40))));
        log.skip_to(40);
        log.publish(vec![commit(41)]);
        assert_eq!(level.next().await, Ok(Some(commit(41))), "a skip to the current revision loses nothing");
    }

    #[tokio::test]
    async fn commit_subscription_older_than_retained_commits_fails_as_compacted() {
        let log = CommitLog::after(0);
        log.publish((1..=MAX_COMMITS as u64 + 2).map(|i| commit(i * 10)).collect());
        let mut late = log.subscribe(0);
        assert_eq!(late.next().await, Err(Compacted { after: 0, oldest: 21 }));
        assert_eq!(log.subscribe(20).next().await, Ok(Some(commit(30))));
    }

    #[tokio::test]
    async fn unread_commits_are_retained_longer_but_in_bounded_number() {
        let many = MAX_COMMITS as u64;
        let log = CommitLog::after(0);
        let mut slow = log.subscribe(0);
        log.publish((1..=many * UNREAD_FACTOR as u64).map(commit).collect());
        assert_eq!(slow.next().await, Ok(Some(commit(1))));
        log.publish((1..=2).map(|i| commit(many * UNREAD_FACTOR as u64 + i)).collect());
        assert_eq!(slow.next().await, Err(Compacted { after: 1, oldest: 3 }));
        drop(slow);
        log.publish(vec![commit(many * 100)]);
        assert_eq!(lock(&log.recent).commits.len(), MAX_COMMITS, "no subscriber has unread commits");
    }
}
