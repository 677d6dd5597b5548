use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{InstanceId, KeyRange, ReplicaState, ShardId, ShardMap};

/// Which shards one instance holds by the last map, and which of them are loaded. No I/O: it only says what to do.
#[derive(Debug)]
pub(super) struct Holding {
    instance: InstanceId,
    /// Whether shards have to be loaded; otherwise they are as soon as the map says so.
    aware: bool,
    own: BTreeMap<ShardId, Own>,
    loaded: BTreeSet<ShardId>,
}

/// A shard that the map gives this instance.
#[derive(Clone, Copy, Debug)]
struct Own {
    range: KeyRange,
    /// Whether a copy waits for being loaded.
    waits: bool,
}

/// What a new map asks of its holder.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Shards to load, and those that hold more keys than before.
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
    ///
    /// A shard that is gone from it but whose keys are held here all the same was merged into another one: to let go of it
    /// would drop what is served. The one that remains is started anew instead, with its wider range.
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
            let waits = copies.any(|replica| replica.state == ReplicaState::Starting);
            own.insert(shard.id, Own { range, waits });
            if self.aware && self.own.get(&shard.id).is_none_or(|before| !holds(before.range, range)) {
                changes.start.push((shard.id, range));
            }
        }
        if self.aware {
            let merged = |range| own.values().any(|own| holds(own.range, range));
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
        let waits = |shard: &&ShardId| self.own.get(shard).is_some_and(|own| own.waits);
        self.loaded.iter().filter(waits).copied().collect()
    }
}

/// Whether all keys of `inner` lie in `outer`.
fn holds(outer: KeyRange, inner: KeyRange) -> bool {
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
    fn what_is_split_or_merged_stays_and_what_is_merged_away_goes() {
        let mut holding = Holding::new(InstanceId::new("a").unwrap(), true);
        let whole = map(&[(0, "a", ReplicaState::Serving), (5, "a", ReplicaState::Serving)]);
        holding.follow(Some(&whole));
        holding.load(ShardId(0));
        holding.load(ShardId(5));
        let merged = map(&[(0, "a", ReplicaState::Serving)]);
        let wider = Changes { start: vec![(ShardId(0), KeyRange::ALL)], stop: vec![] };
        assert_eq!(holding.follow(Some(&merged)), wider, "5 is part of 0 now");
        assert!(holding.loaded().contains(&ShardId(0)), "its keys are served meanwhile");
        assert_eq!(holding.follow(Some(&merged)), Changes::default());

        let split = Changes { start: vec![(ShardId(5), whole.range(1))], stop: vec![] };
        assert_eq!(holding.follow(Some(&whole)), split);
        let elsewhere = map(&[(0, "b", ReplicaState::Serving)]);
        assert_eq!(holding.follow(Some(&elsewhere)).stop, [ShardId(0), ShardId(5)]);
    }

    #[test]
    fn whoever_is_not_aware_is_ready_at_once() {
        let mut holding = Holding::new(InstanceId::new("a").unwrap(), false);
        let changes = holding.follow(Some(&map(&[(0, "a", ReplicaState::Starting)])));
        assert_eq!(changes, Changes::default());
        assert!(holding.loaded().contains(&ShardId(0)) && holding.waiting().is_empty());
    }
}
