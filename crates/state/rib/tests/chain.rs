//! Tests a store's node, an agent's node that follows it (and forgets, restarts and restores), and a reader behind
//! both. After any sequence of steps, the reader has its part of the store and has never seen an older value on the
//! way.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{Cursor, Identity, Prefix, Revision, StoreId};
use fairmesh_rib::{Commit, Entry, Node, Table, Update, Watcher};
use proptest::prelude::*;

const PREFIXES: [&str; 4] = ["/a/", "/a/x/", "/b/", "/c"];
const KEYS: [&str; 6] = ["/a/x/1", "/a/x/2", "/a/y", "/b/1", "/b/2", "/c"];

#[derive(Clone, Debug)]
enum Step {
    Commit { keys: u8, delete: u8 },
    OtherStore,
    AgentPull,
    AgentReconnect,
    AgentRestart,
    Save { prefix: usize },
    Subscribe { prefix: usize },
    Unsubscribe { prefix: usize },
    ReaderPull,
    ReaderReconnect,
}

fn step() -> impl Strategy<Value = Step> {
    let prefix = 0..PREFIXES.len();
    prop_oneof![
        8 => (1..64_u8, any::<u8>()).prop_map(|(keys, delete)| Step::Commit { keys, delete }),
        1 => Just(Step::OtherStore),
        6 => Just(Step::AgentPull),
        2 => Just(Step::AgentReconnect),
        2 => Just(Step::AgentRestart),
        4 => prefix.clone().prop_map(|prefix| Step::Save { prefix }),
        4 => prefix.clone().prop_map(|prefix| Step::Subscribe { prefix }),
        1 => prefix.prop_map(|prefix| Step::Unsubscribe { prefix }),
        6 => Just(Step::ReaderPull),
        2 => Just(Step::ReaderReconnect),
    ]
}

type Entries = Vec<(Arc<str>, Entry)>;

struct Chain {
    store: Node,
    agent: Node,
    /// The agent's watch of the store, and the revision of each prefix; `None` before the prefix's first snapshot.
    upstream: Watcher,
    followed: BTreeMap<Prefix, Option<Revision>>,
    saved: BTreeMap<Prefix, (Revision, Entries)>,
    reader: Watcher,
    /// Prefixes that the reader wants to follow, those requested upstream, those that the agent has, and the reader's
    /// revision of each prefix.
    wants: BTreeSet<Prefix>,
    requested: BTreeSet<Prefix>,
    live: BTreeSet<Prefix>,
    held: BTreeMap<Prefix, Revision>,
    copy: BTreeMap<Arc<str>, (StoreId, Entry)>,
}

fn watch(node: &Node) -> Watcher {
    node.watch("", Identity::Anonymous)
}

fn store(id: u128) -> Node {
    Node::with_table(StoreId(id), Table::new(8))
}

impl Chain {
    fn new() -> Self {
        let (store, agent) = (store(1), Node::replica());
        Self {
            upstream: watch(&store),
            reader: watch(&agent),
            store,
            agent,
            followed: BTreeMap::new(),
            saved: BTreeMap::new(),
            wants: BTreeSet::new(),
            requested: BTreeSet::new(),
            live: BTreeSet::new(),
            held: BTreeMap::new(),
            copy: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        let prefix = |i: usize| Prefix::new(PREFIXES[i]).unwrap();
        match *step {
            Step::Commit { keys, delete } => self.commit(keys, delete),
            Step::OtherStore => {
                self.store = store(self.store.store().unwrap().0 + 1);
                self.reconnect_agent();
            }
            Step::AgentPull => self.pull_agent(),
            Step::AgentReconnect => self.reconnect_agent(),
            Step::AgentRestart => self.restart_agent(),
            Step::Save { prefix: i } => {
                if let Some(Some(_)) = self.followed.get(&prefix(i)) {
                    let saved = self.agent.read(&[prefix(i)]);
                    self.saved.insert(prefix(i), saved);
                }
            }
            Step::Subscribe { prefix: i } => {
                self.wants.insert(prefix(i));
                self.request();
            }
            Step::Unsubscribe { prefix: i } => self.unsubscribe(&prefix(i)),
            Step::ReaderPull => self.pull_reader(),
            Step::ReaderReconnect => self.reconnect_reader(),
        }
    }

    fn commit(&mut self, keys: u8, delete: u8) {
        let revision = self.store.revision().number + 1;
        let chosen = (0..KEYS.len()).filter(|i| keys & (1 << i) != 0);
        let changes = chosen.map(|i| {
            let value = (delete & (1 << i) == 0).then(|| Bytes::from(revision.to_string()));
            (KEYS[i].into(), value)
        });
        self.store.apply(Commit { revision, changes: changes.collect() });
    }

    fn pull_agent(&mut self) {
        let Some(update) = self.upstream.pull() else { return };
        for snapshot in &update.snapshots {
            self.followed.insert(snapshot.prefix.clone(), Some(update.revision));
        }
        self.followed.values_mut().flatten().for_each(|held| *held = update.revision);
        self.agent.apply_update(update).unwrap();
        self.request();
    }

    fn reconnect_agent(&mut self) {
        self.upstream = watch(&self.store);
        for (prefix, held) in &self.followed {
            self.upstream.subscribe(prefix.clone(), held.map(Cursor::at));
        }
    }

    fn restart_agent(&mut self) {
        self.agent = Node::replica();
        let newest = self.saved.values().map(|(revision, _)| (revision.store, revision.number)).max();
        self.saved.retain(|_, (revision, _)| Some(revision.store) == newest.map(|(store, _)| store));
        let mut saved: Vec<_> = self.saved.clone().into_values().collect();
        saved.sort_by_key(|(revision, _)| revision.number);
        if let (Some(earliest), Some(latest)) = (saved.first(), saved.last()) {
            let (revision, floor) = (earliest.0, latest.0.number);
            let entries: BTreeMap<_, _> =
                saved.iter().flat_map(|(_, entries)| entries.iter().cloned()).collect();
            self.agent.restore(revision, floor, entries);
        }
        let held = self.saved.iter().map(|(prefix, (revision, _))| (prefix.clone(), Some(*revision)));
        self.followed = held.collect();
        self.reconnect_agent();
        self.reconnect_reader();
    }

    fn unsubscribe(&mut self, prefix: &Prefix) {
        self.wants.remove(prefix);
        self.requested.remove(prefix);
        self.live.remove(prefix);
        self.held.remove(prefix);
        let wants = &self.wants;
        self.copy.retain(|key, _| wants.iter().any(|prefix| prefix.covers(key)));
        self.reader.unsubscribe(prefix);
        self.upstream.unsubscribe(prefix);
        self.followed.remove(prefix);
        self.saved.remove(prefix);
        let followed = &self.followed;
        self.agent.forget(prefix, |key| followed.keys().any(|prefix| prefix.covers(key)));
    }

    fn reconnect_reader(&mut self) {
        self.reader = watch(&self.agent);
        self.requested.clear();
        self.live.clear();
        self.request();
    }

    /// Follows the reader's prefixes upstream, and subscribes the reader once the agent has them.
    fn request(&mut self) {
        for prefix in &self.wants {
            match self.followed.get(prefix) {
                None => {
                    self.followed.insert(prefix.clone(), None);
                    self.upstream.subscribe(prefix.clone(), None);
                }
                Some(Some(_)) if self.requested.insert(prefix.clone()) => {
                    self.reader.subscribe(prefix.clone(), self.held.get(prefix).copied().map(Cursor::at));
                }
                Some(_) => {}
            }
        }
    }

    fn pull_reader(&mut self) {
        let Some(Update { revision, resumed, snapshots, puts, deletes }) = self.reader.pull() else { return };
        for snapshot in snapshots {
            self.copy.retain(|key, _| !snapshot.prefix.covers(key));
            self.put(revision.store, snapshot.entries);
            self.live.insert(snapshot.prefix);
        }
        self.live.extend(resumed.into_iter().map(|resumed| resumed.prefix));
        self.put(revision.store, puts);
        deletes.iter().for_each(|key| drop(self.copy.remove(key)));
        for prefix in &self.live {
            let before = self.held.insert(prefix.clone(), revision);
            let back =
                before.is_some_and(|held| held.store == revision.store && held.number > revision.number);
            assert!(!back, "{prefix} went back from {before:?} to {revision:?}");
        }
    }

    fn put(&mut self, store: StoreId, entries: Entries) {
        for (key, entry) in entries {
            let revision = entry.revision;
            if let Some((_, older)) = self.copy.insert(key, (store, entry)).filter(|(id, _)| *id == store) {
                assert!(
                    older.revision <= revision,
                    "a value went back from {} to {revision}",
                    older.revision
                );
            }
        }
    }

    fn check(&mut self) {
        self.pull_agent();
        self.pull_reader();
        let wants: Vec<_> = self.wants.iter().cloned().collect();
        let part: BTreeMap<_, _> = self.store.read(&wants).1.into_iter().collect();
        let copy: BTreeMap<_, _> =
            self.copy.iter().map(|(key, (_, entry))| (key.clone(), entry.clone())).collect();
        assert_eq!(copy, part, "of {wants:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reader_behind_agent_converges_to_store(steps in prop::collection::vec(step(), 1..80)) {
        let mut chain = Chain::new();
        for step in &steps {
            chain.step(step);
        }
        chain.check();
    }
}

#[test]
fn agent_restarted_from_saved_copies_has_earliest_saved_revision() {
    let (a, b, all, only_b) = (0, 2, 63, 0b1000);
    let steps = [
        Step::Commit { keys: all, delete: 0 },
        Step::Subscribe { prefix: a },
        Step::Subscribe { prefix: b },
        Step::AgentPull,
        Step::ReaderPull,
        Step::Save { prefix: a },
        Step::Commit { keys: only_b, delete: 0 },
        Step::AgentPull,
        Step::Save { prefix: b },
        // The agent restarts at the first revision, with a later copy of `b` that the reader has not seen.
        Step::AgentRestart,
    ];
    let mut chain = Chain::new();
    steps.iter().for_each(|step| chain.step(step));
    chain.check();
}
