//! Any interleaving of commits, subscriptions, pulls, reconnects and compactions leaves every watcher with exactly
//! its part of the table. Watchers see only whole batches, and never go back to an older revision.

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::Revision;
use proptest::prelude::*;

use super::*;
use crate::{Commit, Entry};

const STORE: StoreId = StoreId(7);
const PREFIXES: [&str; 5] = ["/", "/a/", "/a/x/", "/b/", "/a/x/1"];
const KEYS: [&str; 6] = ["/a/x/1", "/a/x/2", "/a/y", "/b/1", "/b/2", "/c"];

#[derive(Clone, Debug)]
enum Step {
    /// Writes the keys in the first mask as one commit, and deletes those in the second mask.
    Commit {
        keys: u8,
        delete: u8,
    },
    Subscribe {
        reader: usize,
        prefix: usize,
    },
    Unsubscribe {
        reader: usize,
        prefix: usize,
    },
    Pull {
        reader: usize,
    },
    Ack {
        reader: usize,
    },
    Reconnect {
        reader: usize,
    },
    Compact,
    OtherStore,
}

fn step() -> impl Strategy<Value = Step> {
    let (reader, prefix) = (0..2_usize, 0..PREFIXES.len());
    prop_oneof![
        6 => (1..64_u8, any::<u8>()).prop_map(|(keys, delete)| Step::Commit { keys, delete }),
        3 => (reader.clone(), prefix.clone()).prop_map(|(reader, prefix)| Step::Subscribe { reader, prefix }),
        1 => (reader.clone(), prefix).prop_map(|(reader, prefix)| Step::Unsubscribe { reader, prefix }),
        4 => reader.clone().prop_map(|reader| Step::Pull { reader }),
        2 => reader.clone().prop_map(|reader| Step::Ack { reader }),
        2 => reader.prop_map(|reader| Step::Reconnect { reader }),
        1 => Just(Step::Compact),
        1 => Just(Step::OtherStore),
    ]
}

/// A reader at the other end of a connection.
#[derive(Default)]
struct Reader {
    id: WatcherId,
    wants: BTreeSet<Prefix>,
    /// Revision of each received prefix.
    held: BTreeMap<Prefix, Revision>,
    copy: BTreeMap<Arc<str>, Entry>,
}

struct World {
    store: StoreId,
    table: Table,
    hub: Hub,
    readers: [Reader; 2],
}

impl World {
    fn new() -> Self {
        let mut world =
            Self { store: STORE, table: Table::new(12), hub: Hub::default(), readers: Default::default() };
        for reader in &mut world.readers {
            reader.id = world.hub.join(String::new(), Identity::Anonymous);
        }
        world
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Commit { keys, delete } => self.commit(keys, delete),
            Step::Subscribe { reader, prefix } => {
                let (reader, prefix) = (&mut self.readers[reader], Prefix::new(PREFIXES[prefix]).unwrap());
                if reader.wants.insert(prefix.clone()) {
                    self.hub.subscribe(reader.id, prefix, None);
                }
            }
            Step::Unsubscribe { reader, prefix } => {
                let (reader, prefix) = (&mut self.readers[reader], Prefix::new(PREFIXES[prefix]).unwrap());
                reader.wants.remove(&prefix);
                reader.held.remove(&prefix);
                let held: Vec<Prefix> = reader.held.keys().cloned().collect();
                reader.copy.retain(|key, _| held.iter().any(|prefix| prefix.covers(key)));
                self.hub.unsubscribe(reader.id, &prefix);
            }
            Step::Pull { reader } => self.pull(reader),
            Step::Ack { reader } => {
                let reader = &self.readers[reader];
                let newest = reader.held.values().filter(|held| held.store == self.store);
                self.hub.ack(reader.id, newest.map(|held| held.number).max().unwrap_or(0));
            }
            Step::Reconnect { reader } => {
                let reader = &mut self.readers[reader];
                self.hub.leave(reader.id, self.table.revision());
                reader.id = self.hub.join(String::new(), Identity::Anonymous);
                for prefix in &reader.wants {
                    let from = reader.held.get(prefix).map(|held| Cursor::at(*held));
                    self.hub.subscribe(reader.id, prefix.clone(), from);
                }
            }
            Step::Compact => self.table.compact_before(self.table.revision()),
            Step::OtherStore => {
                self.store = StoreId(self.store.0 + 1);
                self.table = Table::new(12);
                self.hub.reset();
            }
        }
        let revision = self.table.revision();
        let least = self.hub.watchers.values().map(|watcher| watcher.applied(revision)).min();
        assert_eq!(
            self.hub.least_applied(revision),
            least.unwrap_or(revision),
            "counted and looked at one by one"
        );
    }

    fn commit(&mut self, keys: u8, delete: u8) {
        let revision = self.table.revision() + 1;
        let chosen = KEYS.iter().enumerate().filter(|(i, _)| keys & (1 << i) != 0);
        let changes: Vec<_> = chosen
            .map(|(i, key)| {
                let value = (delete & (1 << i) == 0).then(|| Bytes::from(revision.to_string()));
                (Arc::from(*key), value)
            })
            .collect();
        let touched: Vec<_> = changes.iter().map(|(key, _)| Arc::clone(key)).collect();
        self.table.apply(Commit { revision, changes });
        self.hub.mark_dirty(&touched);
    }

    fn pull(&mut self, reader: usize) {
        let reader = &mut self.readers[reader];
        let Some(PendingUpdate { update, .. }) = self.hub.pull(reader.id, self.store, &self.table) else {
            return;
        };
        assert_eq!(update.revision.number, self.table.revision(), "an update brings the reader up to date");
        for snapshot in &update.snapshots {
            reader.copy.retain(|key, _| !snapshot.prefix.covers(key));
            reader.copy.extend(snapshot.entries.iter().cloned());
            reader.held.insert(snapshot.prefix.clone(), update.revision);
        }
        for (key, entry) in update.puts {
            assert!(reader.wants.iter().any(|prefix| prefix.covers(&key)), "{key} is not followed");
            reader.copy.insert(key, entry);
        }
        for key in update.deletes {
            reader.copy.remove(&key);
        }
        for resumed in update.resumed {
            assert_eq!(
                reader.held[&resumed.prefix].store, self.store,
                "cursors of another store mean nothing"
            );
        }
        for held in reader.held.values_mut() {
            assert!(held.store != self.store || held.number <= update.revision.number, "went back");
            *held = update.revision;
        }
        let wants: Vec<Prefix> = reader.wants.iter().cloned().collect();
        let part: BTreeMap<_, _> = self.table.read(&wants).into_iter().collect();
        assert_eq!(
            reader.copy, part,
            "every update ends at the table's part, so that no batch is ever half there"
        );
    }

    /// Asserts that a pull after the last one returns nothing, and that no acknowledgement is missing.
    fn check(&mut self) {
        for i in 0..self.readers.len() {
            self.pull(i);
            let reader = &self.readers[i];
            assert_eq!(self.hub.pull(reader.id, self.store, &self.table), None, "nothing changed");
            self.hub.ack(reader.id, self.table.revision());
        }
        assert_eq!(self.hub.least_applied(self.table.revision()), self.table.revision());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn watchers_converge_to_their_prefixes_of_table(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.check();
    }
}

fn put(world: &mut World, keys: impl IntoIterator<Item = String>, bytes: usize) {
    let revision = world.table.revision() + 1;
    let value = Some(Bytes::from(vec![0; bytes]));
    let changes: Vec<_> = keys.into_iter().map(|key| (Arc::from(key), value.clone())).collect();
    let touched: Vec<_> = changes.iter().map(|(key, _)| Arc::clone(key)).collect();
    world.table.apply(Commit { revision, changes });
    world.hub.mark_dirty(&touched);
}

fn live_reader(prefixes: &[&str]) -> (World, WatcherId) {
    let mut world = World::new();
    let id = world.readers[0].id;
    for prefix in prefixes {
        world.hub.subscribe(id, Prefix::new(*prefix).unwrap(), None);
    }
    world.hub.pull(id, STORE, &world.table).unwrap();
    (world, id)
}

#[test]
fn changed_keys_beyond_limit_come_from_log_or_snapshot() {
    for (log, as_snapshot) in [(100_000, false), (100, true)] {
        let (mut world, id) = live_reader(&["/a/", "/b/"]);
        world.table = Table::new(log);
        put(&mut world, ["/b/1".to_owned()], 1);
        put(&mut world, (0..=MAX_DIRTY).map(|i| format!("/a/{i}")), 1);
        put(&mut world, ["/a/1".to_owned()], 1);
        assert!(world.hub.watchers[&id].dirty.len() <= MAX_DIRTY);
        assert_eq!(world.hub.least_applied(3), 0, "it has applied none of it");
        let update = world.hub.pull(id, STORE, &world.table).unwrap().update;
        let prefixes: Vec<_> = update.snapshots.iter().map(|snapshot| snapshot.prefix.as_str()).collect();
        assert_eq!((prefixes.contains(&"/a/"), prefixes.is_empty()), (as_snapshot, !as_snapshot));
        let covered = update.snapshots.iter().map(|snapshot| snapshot.entries.len()).sum::<usize>();
        assert_eq!(covered + update.puts.len(), MAX_DIRTY + 2, "each key comes once");
        assert_eq!(world.hub.pull(id, STORE, &world.table), None, "and not again");
        put(&mut world, ["/a/2".to_owned()], 1);
        let update = world.hub.pull(id, STORE, &world.table).unwrap().update;
        assert_eq!((update.puts.len(), update.snapshots.len()), (1, 0), "it is live again");
    }
}

#[test]
fn watch_delta_larger_than_one_message_is_delivered() {
    let (mut world, id) = live_reader(&["/a/"]);
    for i in 0..12 {
        put(&mut world, [format!("/a/{i}")], crate::MAX_VALUE_BYTES);
    }
    let update = world.hub.pull(id, STORE, &world.table).unwrap().update;
    assert_eq!((update.puts.len(), update.snapshots.len()), (12, 0));
}

#[test]
fn reader_ahead_of_server_gets_no_snapshot_until_server_catches_up() {
    let mut world = World::new();
    let id = world.readers[0].id;
    put(&mut world, ["/a/1".to_owned()], 1);
    let later = Revision { store: STORE, partition: 0, number: 3 };
    world.hub.subscribe(id, Prefix::new("/a/").unwrap(), Some(Cursor::at(later)));
    assert_eq!(world.hub.pull(id, STORE, &world.table), None, "a snapshot would take it back");
    assert_eq!(world.hub.least_applied(1), 1, "it does not delay acknowledgements");
    let applied = |world: &World| {
        let of_a = world.hub.watchers(&Prefix::new("/a/").unwrap(), world.table.revision());
        of_a.iter().map(|watcher| watcher.applied).max()
    };
    assert_eq!((world.hub.is_ahead(id), applied(&world)), (true, Some(3)), "operators see what it holds");
    put(&mut world, ["/a/2".to_owned()], 1);
    assert_eq!(world.hub.pull(id, STORE, &world.table), None);
    put(&mut world, ["/c".to_owned()], 1);
    let woken = world.hub.mark_dirty([]);
    assert!(woken.contains(&id), "it looks again whenever the table moves");
    let update = world.hub.pull(id, STORE, &world.table).unwrap().update;
    assert_eq!((update.resumed.len(), update.puts.len(), update.snapshots.len()), (1, 0, 0));
    assert!(!world.hub.is_ahead(id));
}

#[test]
fn idle_watcher_counts_as_current_without_acknowledging() {
    let (mut world, id) = live_reader(&["/a/"]);
    put(&mut world, ["/b/1".to_owned()], 1);
    let applied =
        |world: &World| world.hub.watchers(&Prefix::new("/a/x/").unwrap(), world.table.revision())[0].applied;
    assert_eq!(applied(&world), 1);
    put(&mut world, ["/a/x/1".to_owned()], 1);
    assert_eq!(applied(&world), 0, "changed and not sent");
    world.hub.ack(id, 99);
    assert_eq!(applied(&world), 0, "an unsent revision cannot be acknowledged");
    world.hub.pull(id, STORE, &world.table).unwrap();
    assert_eq!(applied(&world), 0, "sent and not applied");
    world.hub.ack(id, 2);
    assert_eq!(applied(&world), 2);
    assert!(world.hub.watchers(&Prefix::new("/b/").unwrap(), 2).is_empty());
}

/// Returns the duration of the fastest of several runs, in seconds.
#[allow(clippy::disallowed_methods, reason = "the test measures how time grows with the number of prefixes")]
fn seconds(mut work: impl FnMut()) -> f64 {
    let took = |_| {
        let began = std::time::Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    (0..3).map(took).fold(f64::INFINITY, f64::min)
}

/// Creates a watcher with `prefixes` new subscriptions, before its first pull.
fn subscribed_watcher(hub: &mut Hub, prefixes: usize) -> WatcherId {
    let id = hub.join(String::new(), Identity::Anonymous);
    for number in 0..prefixes {
        hub.subscribe(id, Prefix::new(format!("/{number}/")).unwrap(), None);
    }
    id
}

#[test]
fn cost_of_subscribing_is_linear_in_number_of_prefixes() {
    let subscribed = |prefixes: usize| {
        let (mut hub, table) = (Hub::default(), Table::default());
        let id = subscribed_watcher(&mut hub, prefixes);
        let mut snapshots = 0;
        while let Some(pulled) = hub.pull(id, STORE, &table) {
            assert!(pulled.update.snapshots.len() <= update_pull::MAX_NEW_PER_PULL);
            snapshots += pulled.update.snapshots.len();
        }
        assert_eq!(snapshots, prefixes);
        (0..prefixes).for_each(|n| hub.unsubscribe(id, &Prefix::new(format!("/{n}/")).unwrap()));
    };
    let (few, many) = (seconds(|| subscribed(1_000)), seconds(|| subscribed(16_000)));
    // A linear cost gives a factor of 16 and a logarithm; a quadratic cost would give 256.
    assert!(many < 64.0 * few, "{few} s for 1,000, {many} s for 16,000");
}

#[test]
fn watchers_of_many_prefixes_do_not_delay_changes() {
    let changed = |prefixes: usize| {
        let mut hub = Hub::default();
        for _ in 0..20 {
            subscribed_watcher(&mut hub, prefixes);
        }
        let key = [Arc::from("/1/x")];
        seconds(|| (0..100).for_each(|_| drop(hub.mark_dirty(&key))))
    };
    let (few, many) = (changed(16), changed(4_000));
    assert!(many < 25.0 * few, "{few} s with 16 prefixes each, {many} s with 4,000");
}
