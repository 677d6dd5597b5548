//! The numbers of revisions over all parts of a store.
//!
//! One process writes, so it can count for all of them: readers have one order over everything, and a record that moves to
//! another part keeps its number. A number for each part, as a vector that every cursor holds, was rejected: readers would
//! have to know of parts, and of every change of them.
//!
//! A batch has its number before it is sent, since the number lies in its records, and parts answer out of order: what is
//! committed waits here until every smaller number is settled, and is published in order.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_rib::Commit;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::super::shared::Shared;

/// How many numbers may be unpublished at once.
const MAX_OPEN: usize = 4096;

/// Draws numbers and publishes what they became.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Where it is published.
    home: Arc<Shared>,
    numbers: Mutex<Numbers>,
    room: Arc<Semaphore>,
    changed: Notify,
}

#[derive(Debug)]
struct Numbers {
    /// The last one drawn.
    last: u64,
    /// The newest that is committed, published or not.
    committed: u64,
    open: BTreeMap<u64, Open>,
}

/// A number that is not published.
#[derive(Debug)]
struct Open {
    /// The part that its batch is written to.
    part: usize,
    /// How long others wait for it.
    due: Instant,
    /// What it became, once that is known.
    commit: Option<Commit>,
    _room: OwnedSemaphorePermit,
}

/// A number that keeps others waiting for too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overdue {
    /// The number.
    pub(super) number: u64,
    /// A part that answered since.
    pub(super) alive: usize,
}

impl Sequence {
    /// Counts on after `last`.
    pub(super) fn after(last: u64, home: Arc<Shared>) -> Self {
        let numbers = Numbers { last, committed: last, open: BTreeMap::new() };
        let room = Arc::new(Semaphore::new(MAX_OPEN));
        Self { home, numbers: Mutex::new(numbers), room, changed: Notify::new() }
    }

    /// The newest number that is committed.
    pub(super) fn committed(&self) -> u64 {
        self.lock().committed
    }

    /// The next number, for a batch of this part; others wait for what becomes of it, but not beyond `due`.
    pub(super) async fn draw(&self, part: usize, due: Instant) -> u64 {
        // Never closed; without a permit it only waits with the others.
        let Ok(room) = self.room.clone().acquire_owned().await else { return std::future::pending().await };
        let mut numbers = self.lock();
        numbers.last += 1;
        let number = numbers.last;
        numbers.open.insert(number, Open { part, due, commit: None, _room: room });
        number
    }

    /// Says what became of a number: a commit, or nothing. False when others waited no longer: it cannot be published,
    /// and what was written has to be written under another number.
    pub(super) fn settle(&self, number: u64, commit: Option<Commit>) -> bool {
        let mut numbers = self.lock();
        let Some(open) = numbers.open.get_mut(&number) else { return false };
        match commit {
            None => {
                numbers.open.remove(&number);
            }
            Some(commit) => {
                open.commit = Some(commit);
                numbers.committed = numbers.committed.max(number);
            }
        }
        self.publish(numbers);
        true
    }

    /// Nobody waits for this number any longer, unless it is committed by now.
    pub(super) fn pass(&self, number: u64) {
        let mut numbers = self.lock();
        if numbers.open.get(&number).is_some_and(|open| open.commit.is_none()) {
            numbers.open.remove(&number);
        }
        self.publish(numbers);
    }

    /// Waits until a number is overdue that keeps others from being published.
    pub(super) async fn overdue(&self) -> Overdue {
        loop {
            match self.first_waited_for() {
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

    fn first_waited_for(&self) -> Option<(Overdue, Instant)> {
        let numbers = self.lock();
        let (number, first) = numbers.open.first_key_value()?;
        let waits = numbers.open.values().find(|open| open.commit.is_some())?;
        Some((Overdue { number: *number, alive: waits.part }, first.due))
    }

    /// Publishes what nothing open stands before. Under the lock, so that numbers ascend.
    fn publish(&self, mut numbers: MutexGuard<'_, Numbers>) {
        let mut commits = Vec::new();
        while let Some(first) = numbers.open.first_entry() {
            let Some(commit) = first.get().commit.clone() else { break };
            first.remove();
            commits.push(commit);
        }
        self.home.history.publish(commits);
        drop(numbers);
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::StoreId;

    use super::{
        super::super::{EtcdConfig, client::Client, layout::Layout},
        *,
    };

    fn sequence() -> Sequence {
        let config = EtcdConfig { address: "etcd://127.0.0.1:1".parse().unwrap(), tls: None, login: None };
        let (client, layout) = (Client::new(&config).unwrap(), Layout::of_part("/x"));
        Sequence::after(7, Arc::new(Shared::new(client, layout, StoreId(1), "".into(), 7)))
    }

    fn commit(revision: u64) -> Option<Commit> {
        Some(Commit { revision, changes: Vec::new() })
    }

    #[tokio::test]
    async fn what_is_committed_is_published_when_all_before_it_is_settled() {
        let sequence = sequence();
        let due = Instant::now();
        let numbers = [sequence.draw(0, due).await, sequence.draw(1, due).await, sequence.draw(0, due).await];
        assert_eq!(numbers, [8, 9, 10]);
        assert!(sequence.settle(10, commit(10)));
        assert_eq!((sequence.home.history.newest(), sequence.committed()), (7, 10));
        assert!(sequence.settle(8, None));
        assert_eq!(sequence.home.history.newest(), 7);
        assert!(sequence.settle(9, commit(9)));
        assert_eq!(sequence.home.history.newest(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_keeps_others_waiting_is_passed_over_and_has_to_be_written_anew() {
        let sequence = sequence();
        let due = Instant::now() + std::time::Duration::from_millis(100);
        let (slow, fast) = (sequence.draw(1, due).await, sequence.draw(0, due).await);
        tokio::select! {
            biased;
            overdue = sequence.overdue() => panic!("nobody waits: {overdue:?}"),
            () = sleep_until(due + std::time::Duration::from_secs(1)) => {}
        }
        sequence.settle(fast, commit(fast));
        let overdue = sequence.overdue().await;
        assert_eq!((overdue.number, overdue.alive), (slow, 0));
        sequence.pass(slow);
        assert_eq!(sequence.home.history.newest(), fast);
        assert!(!sequence.settle(slow, commit(slow)), "readers are beyond it");
        let anew = sequence.draw(1, due).await;
        assert!(sequence.settle(anew, commit(anew)));
        assert_eq!(sequence.home.history.newest(), anew);
    }
}
