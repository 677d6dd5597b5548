//! The keys that this server holds, for lookups without locks.

use std::collections::{BTreeSet, HashMap};

use fairmesh_model::{InstanceId, ReplicaState, Role, ShardId, ShardKey, ShardMap};

use super::shard_load::ShardLoad;

/// The keys that an instance holds by one version of its service's shard map.
///
/// Immutable: a new map creates a new value. First keys are stored in a separate array, so that a binary search touches
/// few cache lines.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    version: u64,
    starts: Box<[ShardKey]>,
    shards: Box<[OwnedShard]>,
    loads: Box<[ShardLoad]>,
    role_sets: Vec<Vec<Role>>,
}

#[derive(Debug)]
struct OwnedShard {
    last: ShardKey,
    id: ShardId,
    roles: u32,
}

impl Ownership {
    /// Shards of `map` that `instance` serves: serving and stopping replicas, and starting replicas whose shard is
    /// `ready`, because a caller may learn of a completed move before this server does (ServiceRouter §4.1).
    pub(crate) fn new(map: &ShardMap, instance: &InstanceId, ready: &BTreeSet<ShardId>) -> Self {
        let mut starts = Vec::new();
        let mut shards = Vec::new();
        let mut role_sets: Vec<Vec<Role>> = Vec::new();
        for (position, shard) in map.shards.iter().enumerate() {
            let serves = |state| state != ReplicaState::Starting || ready.contains(&shard.id);
            let own = shard.replicas.iter().filter(|r| r.instance == *instance && serves(r.state));
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
            shards.push(OwnedShard {
                last: range.last,
                id: shard.id,
                roles: u32::try_from(set).unwrap_or(u32::MAX),
            });
        }
        let loads = shards.iter().map(|_| ShardLoad::default()).collect();
        Self { version: map.version, starts: starts.into(), shards: shards.into(), loads, role_sets }
    }

    /// Takes over the counts from the value for the previous map.
    pub(crate) fn carry_over(&self, before: &Self) {
        let known: HashMap<_, _> = before.shards.iter().map(|owned| owned.id).zip(&before.loads).collect();
        for (owned, work) in self.shards.iter().zip(&self.loads) {
            known.get(&owned.id).into_iter().for_each(|before| work.carry_over(before));
        }
    }

    /// Returns the load of the shard that holds `key`, if this instance holds it.
    pub(crate) fn shard_load(&self, key: ShardKey) -> Option<&ShardLoad> {
        self.position(key).map(|at| &self.loads[at])
    }

    /// Returns the load of every shard held here, with the first of its roles.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (ShardId, &Role, &ShardLoad)> {
        let role =
            |owned: &OwnedShard| self.role_sets.get(owned.roles as usize).and_then(|roles| roles.first());
        let loads = self.shards.iter().zip(&self.loads);
        loads.filter_map(move |(owned, work)| Some((owned.id, role(owned)?, work)))
    }

    /// The version of the map.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether this server serves calls for `key`, in `role` if given. O(log own shards).
    pub(crate) fn holds(&self, key: ShardKey, role: Option<&str>) -> bool {
        let Some(at) = self.position(key) else { return false };
        match role {
            None => true,
            Some(role) => self
                .role_sets
                .get(self.shards[at].roles as usize)
                .is_some_and(|set| set.iter().any(|r| r.as_str() == role)),
        }
    }

    /// Returns the position of the shard that holds `key` among the shards held here.
    fn position(&self, key: ShardKey) -> Option<usize> {
        let at = self.starts.partition_point(|start| *start <= key).checked_sub(1)?;
        (key <= self.shards[at].last).then_some(at)
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

    /// Returns a map of shards with 100 keys each, from 0; the last one has no end.
    fn map(replicas: Vec<Vec<Replica>>) -> ShardMap {
        let shard = |(i, replicas)| Shard { id: ShardId(i), start: ShardKey(u128::from(i) * 100), replicas };
        ShardMap { version: 7, interval: KeyRange::ALL, shards: (0..).zip(replicas).map(shard).collect() }
    }

    #[test]
    fn server_owns_only_keys_of_its_shards_in_its_roles() {
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
        assert!(own.holds(ShardKey(200), Some("secondary")), "a stopping replica still serves");
        assert!(!own.holds(ShardKey(300), None) && !own.holds(ShardKey::MAX, None), "it is not loaded yet");

        let ready = BTreeSet::from([ShardId(3)]);
        let own = Ownership::new(&map, &InstanceId::new("a").unwrap(), &ready);
        assert!(own.holds(ShardKey(300), None) && own.holds(ShardKey::MAX, Some("primary")));
    }

    #[test]
    fn instance_without_shards_owns_no_keys() {
        let map = map(vec![vec![replica("a", "primary", ReplicaState::Serving)]]);
        let own = Ownership::new(&map, &InstanceId::new("b").unwrap(), &BTreeSet::new());
        assert!(!own.holds(ShardKey(0), None) && !own.holds(ShardKey::MAX, None));
    }
}
