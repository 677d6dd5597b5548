//! Which keys this server holds, laid out for a look-up without locks.

use std::collections::{BTreeSet, HashMap};

use fairmesh_model::{InstanceId, ReplicaState, Role, ShardId, ShardKey, ShardMap};

use super::work::Work;

/// The keys that one instance holds at one version of its service's shard map.
///
/// Immutable: a new map brings a new one. Starts stand alone in a row, so that a binary search touches few cache lines.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    version: u64,
    starts: Box<[ShardKey]>,
    rest: Box<[Rest]>,
    works: Box<[Work]>,
    role_sets: Vec<Vec<Role>>,
}

#[derive(Debug)]
struct Rest {
    last: ShardKey,
    id: ShardId,
    roles: u32,
}

impl Ownership {
    /// What `instance` holds by `map`: its serving and stopping copies, and starting ones whose shard is `ready`, since
    /// a caller may hear of the published move before this server does (ServiceRouter §4.1).
    pub(super) fn new(map: &ShardMap, instance: &InstanceId, ready: &BTreeSet<ShardId>) -> Self {
        let mut starts = Vec::new();
        let mut rest = Vec::new();
        let mut role_sets: Vec<Vec<Role>> = Vec::new();
        for (position, shard) in map.shards.iter().enumerate() {
            let answers = |state| state != ReplicaState::Starting || ready.contains(&shard.id);
            let own = shard.replicas.iter().filter(|r| r.instance == *instance && answers(r.state));
            let roles: Vec<Role> = own.map(|replica| replica.role.clone()).collect();
            if roles.is_empty() {
                continue;
            }
            let range = map.range(position);
            let known = role_sets.iter().position(|set| *set == roles);
            let set = known.unwrap_or_else(|| {
                role_sets.push(roles);
                role_sets.len() - 1
            });
            starts.push(range.first);
            rest.push(Rest { last: range.last, id: shard.id, roles: u32::try_from(set).unwrap_or(u32::MAX) });
        }
        let works = rest.iter().map(|_| Work::default()).collect();
        Self { version: map.version, starts: starts.into(), rest: rest.into(), works, role_sets }
    }

    /// Goes on counting where the map before left off.
    pub(super) fn go_on_from(&self, before: &Self) {
        let known: HashMap<_, _> = before.rest.iter().map(|rest| rest.id).zip(&before.works).collect();
        for (rest, work) in self.rest.iter().zip(&self.works) {
            known.get(&rest.id).into_iter().for_each(|before| work.go_on_from(before));
        }
    }

    /// The work of the shard that holds `key`, where that is held here.
    pub(super) fn work(&self, key: ShardKey) -> Option<&Work> {
        self.position(key).map(|at| &self.works[at])
    }

    /// The work of every shard that is held here, in the first of the roles in which it is.
    pub(super) fn works(&self) -> impl Iterator<Item = (ShardId, &Role, &Work)> {
        let role = |rest: &Rest| self.role_sets.get(rest.roles as usize).and_then(|roles| roles.first());
        let works = self.rest.iter().zip(&self.works);
        works.filter_map(move |(rest, work)| Some((rest.id, role(rest)?, work)))
    }

    /// The version of the map that this was made from.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether a call for `key`, in `role` where the caller names one, is answered here. O(log own shards).
    pub(super) fn holds(&self, key: ShardKey, role: Option<&str>) -> bool {
        let Some(at) = self.position(key) else { return false };
        match role {
            None => true,
            Some(role) => self
                .role_sets
                .get(self.rest[at].roles as usize)
                .is_some_and(|set| set.iter().any(|r| r.as_str() == role)),
        }
    }

    /// Where the shard that holds `key` stands among those held here.
    fn position(&self, key: ShardKey) -> Option<usize> {
        let at = self.starts.partition_point(|start| *start <= key).checked_sub(1)?;
        (key <= self.rest[at].last).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{KeyRange, Region, Replica, Shard};

    use super::*;

    fn replica(instance: &str, role: &str, state: ReplicaState) -> Replica {
        Replica {
            instance: InstanceId::new(instance).unwrap(),
            region: Region::new("eu").unwrap(),
            role: Role::new(role).unwrap(),
            state,
        }
    }

    /// Shards of 100 keys each from 0; the last one has no end.
    fn map(replicas: Vec<Vec<Replica>>) -> ShardMap {
        let shard = |(i, replicas)| Shard { id: ShardId(i), start: ShardKey(u128::from(i) * 100), replicas };
        ShardMap { version: 7, interval: KeyRange::ALL, shards: (0..).zip(replicas).map(shard).collect() }
    }

    #[test]
    fn only_own_keys_in_own_roles_are_answered() {
        let map = map(vec![
            vec![
                replica("a", "primary", ReplicaState::Serving),
                replica("b", "secondary", ReplicaState::Serving),
            ],
            vec![replica("b", "primary", ReplicaState::Serving)],
            vec![replica("a", "secondary", ReplicaState::Stopping)],
            vec![replica("a", "primary", ReplicaState::Starting)],
        ]);
        let own = Ownership::new(&map, &InstanceId::new("a").unwrap(), &BTreeSet::new());
        assert_eq!(own.version(), 7);
        assert!(own.holds(ShardKey(0), None) && own.holds(ShardKey(99), Some("primary")));
        assert!(!own.holds(ShardKey(5), Some("secondary")), "another instance has that role");
        assert!(!own.holds(ShardKey(100), None));
        assert!(own.holds(ShardKey(200), Some("secondary")), "a stopping copy still answers");
        assert!(!own.holds(ShardKey(300), None) && !own.holds(ShardKey::MAX, None), "it is not loaded yet");

        let ready = BTreeSet::from([ShardId(3)]);
        let own = Ownership::new(&map, &InstanceId::new("a").unwrap(), &ready);
        assert!(own.holds(ShardKey(300), None) && own.holds(ShardKey::MAX, Some("primary")));
    }

    #[test]
    fn an_instance_without_shards_holds_nothing() {
        let map = map(vec![vec![replica("a", "primary", ReplicaState::Serving)]]);
        let own = Ownership::new(&map, &InstanceId::new("b").unwrap(), &BTreeSet::new());
        assert!(!own.holds(ShardKey(0), None) && !own.holds(ShardKey::MAX, None));
    }
}
