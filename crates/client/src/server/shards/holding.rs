use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{InstanceId, KeyRange, ReplicaState, ShardId, ShardMap};

/// Which shards one instance holds by the last map, and which of them are loaded. No I/O: it only says what to do.
#[derive(Debug)]
pub(super) struct Holding {
    instance: InstanceId,
    /// Whether shards have to be loaded; otherwise they are as soon as the map says so.
    aware: bool,
    /// Whether a copy of the shard waits for being loaded, by shard.
    own: BTreeMap<ShardId, bool>,
    loaded: BTreeSet<ShardId>,
}

/// What a new map asks of its holder.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Shards to load.
    pub(super) start: Vec<(ShardId, KeyRange)>,
    /// Shards to let go of.
    pub(super) stop: Vec<ShardId>,
}

impl Holding {
    /// Holds nothing yet.
    pub(super) fn new(instance: InstanceId, aware: bool) -> Self {
        Self { instance, aware, own: BTreeMap::new(), loaded: BTreeSet::new() }
    }

    /// Goes by a new map.
    pub(super) fn follow(&mut self, map: Option<&ShardMap>) -> Changes {
        let mut own = BTreeMap::new();
        let mut changes = Changes::default();
        for (position, shard) in map.iter().flat_map(|map| map.shards.iter().enumerate()) {
            let mut copies =
                shard.replicas.iter().filter(|replica| replica.instance == self.instance).peekable();
            if copies.peek().is_none() {
                continue;
            }
            own.insert(shard.id, copies.any(|replica| replica.state == ReplicaState::Starting));
            if self.aware && !self.own.contains_key(&shard.id) {
                changes.start.extend(map.map(|map| (shard.id, map.range(position))));
            }
        }
        if self.aware {
            changes.stop.extend(self.own.keys().filter(|shard| !own.contains_key(shard)));
            self.loaded.retain(|shard| own.contains_key(shard));
        } else {
            self.loaded = own.keys().copied().collect();
        }
        self.own = own;
        changes
    }

    /// Whether the map gives this instance nothing to hold.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Notes that a shard is loaded.
    pub(super) fn load(&mut self, shard: ShardId) {
        if self.own.contains_key(&shard) {
            self.loaded.insert(shard);
        }
    }

    /// The shards held here that are loaded.
    pub(super) fn loaded(&self) -> &BTreeSet<ShardId> {
        &self.loaded
    }

    /// The loaded shards whose move goes on once the registry hears so. Whoever is not aware need not say.
    pub(super) fn waiting(&self) -> Vec<ShardId> {
        if !self.aware {
            return Vec::new();
        }
        let waits = |shard: &&ShardId| self.own.get(shard).copied().unwrap_or(false);
        self.loaded.iter().filter(waits).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Region, Replica, Role, Shard, ShardKey};

    use super::*;

    fn map(copies: &[(u32, &str, ReplicaState)]) -> ShardMap {
        let shard = |(id, instance, state): &(u32, &str, ReplicaState)| Shard {
            id: ShardId(*id),
            start: ShardKey(u128::from(*id) * 10),
            replicas: vec![Replica {
                instance: InstanceId::new(instance).unwrap(),
                region: Region::new("eu").unwrap(),
                role: Role::new("primary").unwrap(),
                state: *state,
            }],
        };
        ShardMap { version: 1, interval: KeyRange::ALL, shards: copies.iter().map(shard).collect() }
    }

    #[test]
    fn a_move_to_this_instance_is_loaded_then_announced_and_one_away_is_let_go() {
        let mut holding = Holding::new(InstanceId::new("a").unwrap(), true);
        assert!(holding.is_empty());
        let first = map(&[(0, "a", ReplicaState::Serving), (1, "b", ReplicaState::Serving)]);
        let changes = holding.follow(Some(&first));
        assert_eq!(changes.start, [(ShardId(0), first.range(0))]);
        assert!(!holding.is_empty(), "held, though not loaded yet");
        holding.load(ShardId(0));
        assert!(holding.waiting().is_empty(), "a serving copy needs no announcement");

        let moving = map(&[(0, "a", ReplicaState::Stopping), (1, "a", ReplicaState::Starting)]);
        assert_eq!(holding.follow(Some(&moving)).start, [(ShardId(1), moving.range(1))]);
        assert!(holding.waiting().is_empty(), "it is not loaded yet");
        holding.load(ShardId(1));
        assert_eq!(holding.waiting(), [ShardId(1)]);

        let moved = map(&[(0, "b", ReplicaState::Serving), (1, "a", ReplicaState::Serving)]);
        assert_eq!(holding.follow(Some(&moved)), Changes { start: vec![], stop: vec![ShardId(0)] });
        assert!(holding.waiting().is_empty());
        assert_eq!(holding.follow(None).stop, [ShardId(1)], "without a map nothing is held");
    }

    #[test]
    fn whoever_is_not_aware_is_ready_at_once() {
        let mut holding = Holding::new(InstanceId::new("a").unwrap(), false);
        let changes = holding.follow(Some(&map(&[(0, "a", ReplicaState::Starting)])));
        assert_eq!(changes, Changes::default());
        assert!(holding.loaded().contains(&ShardId(0)) && holding.waiting().is_empty());
    }
}
