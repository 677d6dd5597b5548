use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{InstanceId, KeyRange, ReplicaState, ShardId, ShardMap};

/// Shards that the last map assigns to an instance, and which of them are loaded. Does no I/O; it returns the actions
/// to perform.
#[derive(Debug)]
pub(super) struct HeldShards {
    instance: InstanceId,
    /// Whether hooks load shards. Without hooks, a shard counts as loaded as soon as the map assigns it.
    has_hooks: bool,
    own: BTreeMap<ShardId, HeldShard>,
    loaded: BTreeSet<ShardId>,
}

/// A shard that the map assigns to this instance.
#[derive(Clone, Copy, Debug)]
struct HeldShard {
    range: KeyRange,
    /// Whether a replica of the shard is waiting to be loaded.
    is_starting: bool,
}

/// Changes between two maps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Shards to load, including loaded shards with a wider range.
    pub(super) start: Vec<(ShardId, KeyRange)>,
    /// Shards to release.
    pub(super) stop: Vec<ShardId>,
}

impl HeldShards {
    /// Creates the state without shards.
    pub(super) fn new(instance: InstanceId, has_hooks: bool) -> Self {
        Self { instance, has_hooks, own: BTreeMap::new(), loaded: BTreeSet::new() }
    }

    /// Applies a new map.
    ///
    /// If a shard has disappeared but its keys are still held here, it was merged into another shard. Releasing it
    /// would drop keys that are served; instead, the remaining shard is started again with its wider range.
    pub(super) fn follow(&mut self, map: Option<&ShardMap>) -> Changes {
        let mut own = BTreeMap::new();
        let mut changes = Changes::default();
        let shards =
            map.iter().flat_map(|map| (0..).zip(&map.shards).map(|(at, shard)| (map.range(at), shard)));
        for (range, shard) in shards {
            let mut copies =
                shard.replicas.iter().filter(|replica| replica.instance == self.instance).peekable();
            if copies.peek().is_none() {
                continue;
            }
            let is_starting = copies.any(|replica| replica.state == ReplicaState::Starting);
            own.insert(shard.id, HeldShard { range, is_starting });
            if self.has_hooks && self.own.get(&shard.id).is_none_or(|before| !contains(before.range, range)) {
                changes.start.push((shard.id, range));
            }
        }
        if self.has_hooks {
            let merged = |range| own.values().any(|own| contains(own.range, range));
            let gone =
                self.own.iter().filter(|(shard, before)| !own.contains_key(shard) && !merged(before.range));
            changes.stop.extend(gone.map(|(shard, _)| *shard));
            self.loaded.retain(|shard| own.contains_key(shard));
        } else {
            self.loaded = own.keys().copied().collect();
        }
        self.own = own;
        changes
    }

    /// Whether the map assigns no shard to this instance.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Records that a shard is loaded.
    pub(super) fn mark_loaded(&mut self, shard: ShardId) {
        if self.own.contains_key(&shard) {
            self.loaded.insert(shard);
        }
    }

    /// The loaded shards that this instance holds.
    pub(super) fn loaded(&self) -> &BTreeSet<ShardId> {
        &self.loaded
    }

    /// Loaded shards whose moves continue once the registry knows that the shards are loaded; none without hooks.
    pub(super) fn waiting(&self) -> Vec<ShardId> {
        if !self.has_hooks {
            return Vec::new();
        }
        let is_starting = |shard: &&ShardId| self.own.get(shard).is_some_and(|own| own.is_starting);
        self.loaded.iter().filter(is_starting).copied().collect()
    }
}

/// Whether `outer` contains all keys of `inner`.
fn contains(outer: KeyRange, inner: KeyRange) -> bool {
    outer.first <= inner.first && inner.last <= outer.last
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
    fn assigned_shard_is_loaded_and_removed_shard_is_released() {
        let mut held = HeldShards::new(InstanceId::new("a").unwrap(), true);
        assert!(held.is_empty());
        let first = map(&[(0, "a", ReplicaState::Serving), (1, "b", ReplicaState::Serving)]);
        let changes = held.follow(Some(&first));
        assert_eq!(changes.start, [(ShardId(0), first.range(0))]);
        assert!(!held.is_empty(), "held, though not loaded yet");
        held.mark_loaded(ShardId(0));
        assert!(held.waiting().is_empty(), "a serving copy needs no announcement");

        let moving = map(&[(0, "a", ReplicaState::Stopping), (1, "a", ReplicaState::Starting)]);
        assert_eq!(held.follow(Some(&moving)).start, [(ShardId(1), moving.range(1))]);
        assert!(held.waiting().is_empty(), "it is not loaded yet");
        held.mark_loaded(ShardId(1));
        assert_eq!(held.waiting(), [ShardId(1)]);

        let moved = map(&[(0, "b", ReplicaState::Serving), (1, "a", ReplicaState::Serving)]);
        assert_eq!(held.follow(Some(&moved)), Changes { start: vec![], stop: vec![ShardId(0)] });
        assert!(held.waiting().is_empty());
        assert_eq!(held.follow(None).stop, [ShardId(1)], "without a map nothing is held");
    }

    #[test]
    fn shard_splits_and_merges_keep_keys_and_moves_release_them() {
        let mut held = HeldShards::new(InstanceId::new("a").unwrap(), true);
        let whole = map(&[(0, "a", ReplicaState::Serving), (5, "a", ReplicaState::Serving)]);
        held.follow(Some(&whole));
        held.mark_loaded(ShardId(0));
        held.mark_loaded(ShardId(5));
        let merged = map(&[(0, "a", ReplicaState::Serving)]);
        let wider = Changes { start: vec![(ShardId(0), KeyRange::ALL)], stop: vec![] };
        assert_eq!(held.follow(Some(&merged)), wider, "5 is part of 0 now");
        assert!(held.loaded().contains(&ShardId(0)), "its keys are served meanwhile");
        assert_eq!(held.follow(Some(&merged)), Changes::default());

        let split = Changes { start: vec![(ShardId(5), whole.range(1))], stop: vec![] };
        assert_eq!(held.follow(Some(&whole)), split);
        let elsewhere = map(&[(0, "b", ReplicaState::Serving)]);
        assert_eq!(held.follow(Some(&elsewhere)).stop, [ShardId(0), ShardId(5)]);
    }

    #[test]
    fn shards_of_server_without_hooks_are_ready_at_once() {
        let mut held = HeldShards::new(InstanceId::new("a").unwrap(), false);
        let changes = held.follow(Some(&map(&[(0, "a", ReplicaState::Starting)])));
        assert_eq!(changes, Changes::default());
        assert!(held.loaded().contains(&ShardId(0)) && held.waiting().is_empty());
    }
}
