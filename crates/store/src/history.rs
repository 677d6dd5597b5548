use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_rib::Commit;
use tokio::sync::watch;

/// How many commits are kept for subscribers that start late or fall behind.
const MAX_COMMITS: usize = 4096;
/// How many bytes of keys and values they may hold.
const MAX_BYTES: usize = 32 << 20;
/// How many times as much is kept for a subscriber that has yet to read it. One that loses its place has to load
/// everything, which for a large store is gigabytes, and every write waits for it: so it may be held up for seconds
/// under the heaviest stream of writes before that.
const FOR_UNREAD: usize = 8;

/// A subscriber asks for commits that are no longer kept; it has to load everything and subscribe again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {after} is too far back: commits are kept from {oldest}; load everything again")]
pub struct Behind {
    /// The last revision that the subscriber has.
    pub after: u64,
    /// The oldest revision that it could still get.
    pub oldest: u64,
}

/// The newest commits. Their numbers ascend; a store may leave some out.
#[derive(Debug)]
struct Recent {
    /// Every commit with a greater number is kept.
    after: u64,
    commits: VecDeque<Commit>,
    bytes: usize,
    /// What each subscriber has read, for as long as it is there.
    readers: Vec<Weak<AtomicU64>>,
}

impl Recent {
    fn after(revision: u64) -> Self {
        Self { after: revision, commits: VecDeque::new(), bytes: 0, readers: Vec::new() }
    }

    /// Drops the oldest commits for which there is no room.
    fn make_room(&mut self) {
        self.readers.retain(|reader| reader.strong_count() > 0);
        let read = self.readers.iter().filter_map(Weak::upgrade).map(|reader| reader.load(Relaxed)).min();
        while let Some(oldest) = self.commits.front() {
            let unread = read.is_some_and(|read| read < oldest.revision);
            let times = if unread { FOR_UNREAD } else { 1 };
            if self.commits.len() <= times * MAX_COMMITS && self.bytes <= times * MAX_BYTES {
                return;
            }
            self.bytes -= weight(oldest);
            self.after = oldest.revision;
            self.commits.pop_front();
        }
    }
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
        let recent = Recent::after(revision);
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
        recent.make_room();
        drop(recent);
        self.newest.send_modify(|now| now.revision = newest);
    }

    /// Goes on after `revision`, though what led there is not known: whoever stands before it has to load everything.
    pub(crate) fn skip_to(&self, revision: u64) {
        let mut recent = lock(&self.recent);
        if revision <= self.newest() {
            return;
        }
        *recent = Recent { readers: std::mem::take(&mut recent.readers), ..Recent::after(revision) };
        drop(recent);
        self.newest.send_modify(|now| now.revision = revision);
    }

    /// Nothing will be published any more: subscribers come to their end.
    pub(crate) fn close(&self) {
        self.newest.send_modify(|now| now.closed = true);
    }

    /// Every commit after `after`, past and future.
    pub(crate) fn subscribe(&self, after: u64) -> Commits {
        let read = Arc::new(AtomicU64::new(after));
        lock(&self.recent).readers.push(Arc::downgrade(&read));
        Commits { recent: self.recent.clone(), newest: self.newest.subscribe(), after, read }
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
    /// The same for the history, which keeps what is unread for longer.
    read: Arc<AtomicU64>,
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
                return Ok(Some(self.took(commit)));
            }
            if closed || self.newest.changed().await.is_err() {
                return Ok(self.kept()?.map(|last| self.took(last)));
            }
        }
    }

    fn took(&mut self, commit: Commit) -> Commit {
        self.after = commit.revision;
        self.read.store(commit.revision, Relaxed);
        commit
    }

    fn kept(&self) -> Result<Option<Commit>, Behind> {
        let recent = lock(&self.recent);
        if self.after < recent.after {
            return Err(Behind { after: self.after, oldest: recent.after + 1 });
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
    async fn numbers_may_have_gaps_and_a_reader_may_stand_within_one() {
        let history = History::after(5);
        history.publish([7, 8, 12].map(commit).into());
        let mut readers = [5, 6, 7, 11, 12, 20].map(|after| history.subscribe(after));
        history.publish(vec![commit(21)]);
        history.close();
        let mut read = Vec::new();
        for reader in &mut readers {
            read.push(numbers(reader).await);
        }
        let all = [7, 8, 12, 21];
        assert_eq!(read, [&all[..], &all[..], &all[1..], &all[2..], &all[3..], &all[3..]]);
    }

    #[tokio::test]
    async fn a_reader_from_before_a_skip_has_to_load_and_one_from_after_it_goes_on() {
        let history = History::after(5);
        history.publish(vec![commit(7)]);
        let (mut behind, mut level) = (history.subscribe(7), history.subscribe(30));
        history.skip_to(30);
        assert_eq!(behind.next().await, Err(Behind { after: 7, oldest: 31 }));
        history.publish(vec![commit(40)]);
        assert_eq!(behind.next().await, Err(Behind { after: 7, oldest: 31 }), "it stays so");
        assert_eq!(level.next().await, Ok(Some(commit(40))));
        history.skip_to(40);
        history.publish(vec![commit(41)]);
        assert_eq!(level.next().await, Ok(Some(commit(41))), "a skip to where it stands loses nothing");
    }

    #[tokio::test]
    async fn what_is_dropped_for_room_is_told_to_who_has_not_read_it() {
        let history = History::after(0);
        history.publish((1..=MAX_COMMITS as u64 + 2).map(|i| commit(i * 10)).collect());
        let mut late = history.subscribe(0);
        assert_eq!(late.next().await, Err(Behind { after: 0, oldest: 21 }));
        assert_eq!(history.subscribe(20).next().await, Ok(Some(commit(30))));
    }

    #[tokio::test]
    async fn what_a_subscriber_has_yet_to_read_is_kept_for_longer_and_not_for_ever() {
        let many = MAX_COMMITS as u64;
        let history = History::after(0);
        let mut slow = history.subscribe(0);
        history.publish((1..=many * FOR_UNREAD as u64).map(commit).collect());
        assert_eq!(slow.next().await, Ok(Some(commit(1))));
        history.publish((1..=2).map(|i| commit(many * FOR_UNREAD as u64 + i)).collect());
        assert_eq!(slow.next().await, Err(Behind { after: 1, oldest: 3 }));
        drop(slow);
        history.publish(vec![commit(many * 100)]);
        assert_eq!(lock(&history.recent).commits.len(), MAX_COMMITS, "nobody has yet to read it");
    }
}
