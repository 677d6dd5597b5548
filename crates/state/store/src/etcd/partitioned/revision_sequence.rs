//! The sequence of revisions over all partitions of a store.
//!
//! With a single writer, revisions are one sequence: readers see a total order, and a record that moves to another
//! partition keeps its revision. A revision per partition, as a vector in every cursor, was rejected: readers would
//! have to know the partitions and follow their changes.
//!
//! A batch gets its revision before it is sent, because its records contain the revision, and partitions respond out
//! of order. A commit therefore waits here until every smaller revision is settled, so that commits are published in
//! order.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_rib::Commit;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::super::state::EtcdState;

/// Maximum number of revisions allocated and not yet published.
const MAX_PENDING: usize = 4096;

/// Allocates revisions and publishes their commits in order.
#[derive(Debug)]
pub(super) struct RevisionSequence {
    /// The home partition, which has the commit log.
    home: Arc<EtcdState>,
    numbers: Mutex<SequenceState>,
    permits: Arc<Semaphore>,
    changed: Notify,
}

#[derive(Debug)]
struct SequenceState {
    /// Last allocated revision.
    last: u64,
    /// Newest committed revision, published or not.
    committed: u64,
    pending: BTreeMap<u64, Pending>,
}

/// A revision that is allocated but not published.
#[derive(Debug)]
struct Pending {
    /// Partition of the revision's batch.
    part: usize,
    /// Deadline until which later revisions wait for this one.
    due: Instant,
    /// The commit of the revision, once committed.
    commit: Option<Commit>,
    _permit: OwnedSemaphorePermit,
}

/// A revision that has blocked later revisions for too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverdueRevision {
    /// The revision.
    pub(super) number: u64,
    /// A partition that has responded since the revision was allocated.
    pub(super) responsive: usize,
}

impl RevisionSequence {
    /// Creates a sequence that continues after the revision `last`.
    pub(super) fn after(last: u64, home: Arc<EtcdState>) -> Self {
        let numbers = SequenceState { last, committed: last, pending: BTreeMap::new() };
        let permits = Arc::new(Semaphore::new(MAX_PENDING));
        Self { home, numbers: Mutex::new(numbers), permits, changed: Notify::new() }
    }

    /// Newest committed revision.
    pub(super) fn committed(&self) -> u64 {
        self.lock().committed
    }

    /// Allocates the next revision for a batch in this partition. Later revisions wait for it until `due`.
    pub(super) async fn allocate(&self, part: usize, due: Instant) -> u64 {
        // The semaphore is never closed. If it were, this would wait forever, like a caller without a permit.
        let Ok(permit) = self.permits.clone().acquire_owned().await else {
            return std::future::pending().await;
        };
        let mut numbers = self.lock();
        numbers.last += 1;
        let number = numbers.last;
        numbers.pending.insert(number, Pending { part, due, commit: None, _permit: permit });
        number
    }

    /// Settles a revision with its commit, or without one. Returns false if later revisions were already published;
    /// the batch must then be written under another revision.
    pub(super) fn settle(&self, number: u64, commit: Option<Commit>) -> bool {
        let mut numbers = self.lock();
        let Some(pending) = numbers.pending.get_mut(&number) else { return false };
        match commit {
            None => {
                numbers.pending.remove(&number);
            }
            Some(commit) => {
                pending.commit = Some(commit);
                numbers.committed = numbers.committed.max(number);
            }
        }
        self.publish(numbers);
        true
    }

    /// Stops waiting for this revision, unless it is committed meanwhile.
    pub(super) fn skip(&self, number: u64) {
        let mut numbers = self.lock();
        if numbers.pending.get(&number).is_some_and(|pending| pending.commit.is_none()) {
            numbers.pending.remove(&number);
        }
        self.publish(numbers);
    }

    /// Waits until a revision is overdue and blocks committed revisions.
    pub(super) async fn overdue(&self) -> OverdueRevision {
        loop {
            match self.first_blocking() {
                Some((overdue, due)) if due <= Instant::now() => return overdue,
                Some((_, due)) => {
                    tokio::select! {
                        () = sleep_until(due) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn first_blocking(&self) -> Option<(OverdueRevision, Instant)> {
        let numbers = self.lock();
        let (number, first) = numbers.pending.first_key_value()?;
        let waits = numbers.pending.values().find(|pending| pending.commit.is_some())?;
        Some((OverdueRevision { number: *number, responsive: waits.part }, first.due))
    }

    /// Publishes the commits before the first pending revision. The caller holds the lock, so that revisions ascend.
    fn publish(&self, mut numbers: MutexGuard<'_, SequenceState>) {
        let mut commits = Vec::new();
        while let Some(first) = numbers.pending.first_entry() {
            let Some(commit) = first.get().commit.clone() else { break };
            first.remove();
            commits.push(commit);
        }
        self.home.commit_log.publish(commits);
        drop(numbers);
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, SequenceState> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::StoreId;

    use super::{
        super::super::{EtcdConfig, client::Client, key_layout::Layout},
        *,
    };

    fn sequence() -> RevisionSequence {
        let config = EtcdConfig { address: "etcd://127.0.0.1:1".parse().unwrap(), tls: None, login: None };
        let (client, layout) = (Client::new(&config).unwrap(), Layout::for_partition("/x"));
        RevisionSequence::after(7, Arc::new(EtcdState::new(client, layout, StoreId(1), "".into(), 7)))
    }

    fn commit(revision: u64) -> Option<Commit> {
        Some(Commit { revision, changes: Vec::new() })
    }

    #[tokio::test]
    async fn commit_is_published_once_all_earlier_revisions_are_settled() {
        let sequence = sequence();
        let due = Instant::now();
        let numbers = [
            sequence.allocate(0, due).await,
            sequence.allocate(1, due).await,
            sequence.allocate(0, due).await,
        ];
        assert_eq!(numbers, [8, 9, 10]);
        assert!(sequence.settle(10, commit(10)));
        assert_eq!((sequence.home.commit_log.newest(), sequence.committed()), (7, 10));
        assert!(sequence.settle(8, None));
        assert_eq!(sequence.home.commit_log.newest(), 7);
        assert!(sequence.settle(9, commit(9)));
        assert_eq!(sequence.home.commit_log.newest(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn only_overdue_revision_is_skipped_and_later_written_again() {
        let sequence = sequence();
        let due = Instant::now() + std::time::Duration::from_millis(100);
        let (slow, fast) = (sequence.allocate(1, due).await, sequence.allocate(0, due).await);
        tokio::select! {
            biased;
            overdue = sequence.overdue() => panic!("no revision is blocked: {overdue:?}"),
            () = sleep_until(due + std::time::Duration::from_secs(1)) => {}
        }
        sequence.settle(fast, commit(fast));
        let overdue = sequence.overdue().await;
        assert_eq!((overdue.number, overdue.responsive), (slow, 0));
        sequence.skip(slow);
        assert_eq!(sequence.home.commit_log.newest(), fast);
        assert!(!sequence.settle(slow, commit(slow)), "later revisions are published");
        let anew = sequence.allocate(1, due).await;
        assert!(sequence.settle(anew, commit(anew)));
        assert_eq!(sequence.home.commit_log.newest(), anew);
    }
}
