//! Fleets whose replicas come and go while connections are open.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_placement::{BUCKETS, BucketTable, CHAIN};
use proptest::{prelude::*, sample::Index};

use crate::{
    table::{replica, table},
    walk::{Holds, Mark, Seen, Verdict, decide},
};

#[derive(Clone, Debug)]
enum Step {
    Add,
    /// A replica stops accepting, and keeps its connections.
    Drain(Index),
    /// A drained replica without connections leaves.
    Remove(Index),
    /// A connection begins, at whichever replica the router chooses.
    Begin(Index, Index),
    /// Connections of a bucket end.
    End(Index),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    prop_oneof![
        1 => Just(Step::Add),
        1 => index().prop_map(Step::Drain),
        1 => index().prop_map(Step::Remove),
        6 => (index(), index()).prop_map(|(bucket, at)| Step::Begin(bucket, at)),
        1 => index().prop_map(Step::End),
    ]
}

struct Connection {
    bucket: usize,
    owner: u8,
    /// Replicas that may stand before the owner in the chain: those that drained when it began, and those added since.
    before: usize,
}

/// Replicas by number. `tables` has the table of those that do not have the current one.
struct Fleet {
    members: BTreeSet<u8>,
    draining: BTreeSet<u8>,
    last: u8,
    table: BucketTable,
    tables: BTreeMap<u8, BucketTable>,
    connections: Vec<Connection>,
}

impl Fleet {
    fn new() -> Self {
        let members = BTreeSet::from([1, 2]);
        Self {
            table: table(&members),
            members,
            draining: BTreeSet::new(),
            last: 2,
            tables: BTreeMap::new(),
            connections: Vec::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Add => {
                self.last += 1;
                self.members.insert(self.last);
                self.connections.iter_mut().for_each(|one| one.before += 1);
            }
            Step::Drain(index) => {
                let accepting: Vec<u8> = self.members.difference(&self.draining).copied().collect();
                if accepting.len() > 1 {
                    self.draining.insert(*index.get(&accepting));
                }
            }
            Step::Remove(index) => {
                let has_none = |one: &&u8| self.connections.iter().all(|open| open.owner != **one);
                let idle: Vec<u8> = self.draining.iter().filter(has_none).copied().collect();
                if !idle.is_empty() {
                    let removed = *index.get(&idle);
                    self.members.remove(&removed);
                    self.draining.remove(&removed);
                }
            }
            Step::Begin(bucket, at) => {
                let (bucket, at) = (bucket.index(BUCKETS), self.router(at));
                let taken = self.walk((bucket, at), None).expect("a table that all have discards nothing");
                // A refused connection is not followed: more replicas drain than a chain has places for.
                if !self.draining.contains(&taken) {
                    let before = self.draining.len();
                    self.connections.push(Connection { bucket, owner: taken, before });
                }
            }
            Step::End(index) => {
                if !self.connections.is_empty() {
                    self.connections.swap_remove(index.index(self.connections.len()));
                }
            }
        }
        self.table = table(&self.members);
    }

    fn router(&self, at: &Index) -> u8 {
        *at.get(&self.members.iter().copied().collect::<Vec<_>>())
    }

    /// Who takes a packet that the router sends to `at`: one of a connection of `owner`, or the first packet of one. `None`: it is discarded.
    fn walk(&self, (bucket, at): (usize, u8), owner: Option<u8>) -> Option<u8> {
        let (mut at, mut mark) = (at, None);
        loop {
            let table = self.tables.get(&at).unwrap_or(&self.table);
            let seen = Seen {
                chain: table.chains()[bucket],
                unreachable: 0,
                own: table.position(replica(at)),
                version: table.version(),
                mark,
                begins: owner.is_none(),
                listens: !self.draining.contains(&at),
                holds: if owner == Some(at) { Holds::Open } else { Holds::Nothing },
            };
            match decide(&seen) {
                Verdict::Take => return Some(at),
                Verdict::Discard => return None,
                Verdict::PassOn { next, hops } => {
                    assert!(hops as usize <= 15, "{hops} hops");
                    at = table.replicas()[usize::from(next)].ip().octets()[3];
                    mark = Some(Mark { version: table.version(), hops });
                }
            }
        }
    }

    /// Connections that a chain is long enough for.
    fn followed(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|one| one.before < CHAIN || self.members.len() <= CHAIN)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn packets_reach_their_connection_while_replicas_come_and_go(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut fleet = Fleet::new();
        for step in &steps {
            fleet.apply(step);
            for connection in fleet.followed() {
                for at in &fleet.members {
                    let taken = fleet.walk((connection.bucket, *at), Some(connection.owner));
                    prop_assert_eq!(taken, Some(connection.owner));
                }
            }
        }
    }

    #[test]
    fn packets_are_never_reset_while_replicas_have_two_tables(
        steps in prop::collection::vec(step(), 1..20),
        change in prop_oneof![Just(Step::Add), any::<Index>().prop_map(Step::Remove)],
        late in prop::collection::vec(any::<bool>(), 32),
    ) {
        let mut fleet = Fleet::new();
        steps.iter().for_each(|step| fleet.apply(step));
        let (before, members) = (fleet.table.clone(), fleet.members.clone());
        fleet.apply(&change);
        prop_assume!(before.version() != fleet.table.version());
        // Those that the router still knows, and the new one.
        fleet.members.extend(&members);
        let late = fleet.members.iter().zip(late).filter(|(_, is_late)| *is_late);
        fleet.tables = late.map(|(member, _)| (*member, before.clone())).collect();
        for connection in fleet.followed() {
            for at in &fleet.members {
                let taken = fleet.walk((connection.bucket, *at), Some(connection.owner));
                prop_assert!(taken.is_none() || taken == Some(connection.owner), "{:?}", taken);
            }
        }
    }
}

#[test]
fn packets_of_unreachable_replica_are_taken_by_the_last_one_and_reach_all_others() {
    let mut fleet = Fleet::new();
    (0..3).for_each(|_| fleet.apply(&Step::Add));
    let all = fleet.table.position(replica(3)).unwrap();
    let walk = |bucket: usize, from: u8, owner: u8| {
        let (mut at, mut mark) = (from, None);
        loop {
            let seen = Seen {
                chain: fleet.table.chains()[bucket],
                unreachable: 1 << all,
                own: fleet.table.position(replica(at)),
                version: fleet.table.version(),
                mark,
                begins: false,
                listens: true,
                holds: if owner == at { Holds::Open } else { Holds::Nothing },
            };
            match decide(&seen) {
                Verdict::Take => return at,
                Verdict::Discard => panic!("bucket {bucket} from {from}"),
                Verdict::PassOn { next, hops } => {
                    assert_ne!(next, all, "the replica is unreachable");
                    at = fleet.table.replicas()[usize::from(next)].ip().octets()[3];
                    mark = Some(Mark { version: seen.version, hops });
                }
            }
        }
    };
    for bucket in 0..256 {
        for from in [1, 2, 4, 5] {
            // Its kernel holds no such connection, and so resets it.
            assert_ne!(walk(bucket, from, 3), 3);
            for owner in [1, 2, 4, 5] {
                assert_eq!(walk(bucket, from, owner), owner);
            }
        }
    }
}
