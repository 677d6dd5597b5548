mod key;

use std::{collections::BTreeSet, fmt, num::ParseIntError, str::FromStr};

use crate::{InstanceId, Invalid, Region, Role};

pub use key::{KeyRange, ShardKey};

/// The id of a shard within its map. It is stable across moves. After a split, the upper half gets a new id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u32);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for ShardId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

/// Maximum number of shards whose load a server reports individually: the most loaded shards. The load of all other
/// shards is reported as one sum. Balancing moves only the few hottest shards, so the report stays small for maps
/// with millions of shards.
pub const MAX_REPORTED_SHARDS: usize = 128;

/// The assignment of a service's keys to replicas (ServiceRouter §3.3). Shards are contiguous: each ends where the
/// next one starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    /// Version of the map, which starts at 1 and is incremented with every change.
    pub version: u64,
    /// The keys that the map covers.
    pub interval: KeyRange,
    /// The shards in ascending order of their start. The first shard starts at the start of the interval.
    pub shards: Vec<Shard>,
}

/// One range of keys and its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The shard's id.
    pub id: ShardId,
    /// The shard's first key.
    pub start: ShardKey,
    /// The shard's copies. May be empty while a service is being set up.
    pub replicas: Vec<Replica>,
}

/// One copy of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// The endpoint that holds the copy.
    pub instance: InstanceId,
    /// The endpoint's region, so that a caller may subscribe to one region's part of the map (ServiceRouter §3.2).
    pub region: Region,
    /// The role of the copy. Roles are opaque.
    pub role: Role,
    /// The state of the copy.
    pub state: ReplicaState,
}

/// The state of a copy in a make-before-break move (ServiceRouter §4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "spec", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "spec", serde(rename_all = "lowercase"))]
pub enum ReplicaState {
    /// The copy is loading the shard and receives no calls yet.
    Starting,
    /// The copy receives calls.
    #[default]
    Serving,
    /// Callers are leaving. The copy still responds but gets no new callers.
    Stopping,
}

/// A requested move, addition or removal of a shard's copy. The record stays in the RIB until the move is done. A
/// restarted controller can therefore continue the move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMove {
    /// The shard.
    pub shard: ShardId,
    /// The role of the copy.
    pub role: Role,
    /// The endpoint to move from; `None` adds a copy.
    pub from: Option<InstanceId>,
    /// The endpoint to move to; `None` removes the copy.
    pub to: Option<InstanceId>,
}

impl ShardMove {
    /// Checks that there is a source or a destination.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.from.is_some() || self.to.is_some() {
            return Ok(());
        }
        let hint = "name the source, the destination, or both";
        Err(Invalid::new("to", "neither 'from' nor 'to' names an instance", hint))
    }
}

/// Formats the move for messages: `shard 5 (primary) from cart-0 to cart-1`.
impl fmt::Display for ShardMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, role, from, to } = self;
        match (from, to) {
            (Some(from), Some(to)) => write!(f, "shard {shard} ({role}) from {from} to {to}"),
            (None, Some(to)) => write!(f, "another copy of shard {shard} ({role}) to {to}"),
            (Some(from), None) => write!(f, "a copy of shard {shard} ({role}) away from {from}"),
            (None, None) => write!(f, "nothing of shard {shard} ({role})"),
        }
    }
}

impl ShardMap {
    /// Checks that the shards cover the interval without gap or overlap, and that ids and copies are unique.
    pub fn validate(&self) -> Result<(), Invalid> {
        let Some(first) = self.shards.first() else {
            return Err(Invalid::new("shards", "the list is empty", "declare at least one shard"));
        };
        if first.start != self.interval.first {
            return Err(Invalid::new(
                "shards[0].start",
                format!("keys from {} to {} belong to no shard", self.interval.first, first.start),
                format!("start the first shard at {}", self.interval.first),
            ));
        }
        let mut ids = BTreeSet::new();
        for (i, shard) in self.shards.iter().enumerate() {
            shard.validate(&mut ids).map_err(|e| e.within(format!("shards[{i}]")))?;
            if !self.interval.contains(shard.start) {
                return Err(Invalid::new(
                    format!("shards[{i}].start"),
                    format!("{} is outside the interval {}", shard.start, self.interval),
                    "widen the interval or leave the shard out",
                ));
            }
            if i > 0 && shard.start <= self.shards[i - 1].start {
                return Err(Invalid::new(
                    format!("shards[{i}].start"),
                    format!("{} does not follow {}", shard.start, self.shards[i - 1].start),
                    "order shards by ascending start, each starting where the one before ends",
                ));
            }
        }
        Ok(())
    }

    /// The index in `shards` of the shard that contains `key`; `None` outside the interval.
    pub fn position(&self, key: ShardKey) -> Option<usize> {
        if !self.interval.contains(key) {
            return None;
        }
        self.shards.partition_point(|shard| shard.start <= key).checked_sub(1)
    }

    /// The key range of the shard at index `position`.
    ///
    /// # Panics
    /// If there is no shard at this index.
    pub fn range(&self, position: usize) -> KeyRange {
        let last = match self.shards.get(position + 1) {
            Some(next) => ShardKey(next.start.0 - 1),
            None => self.interval.last,
        };
        KeyRange { first: self.shards[position].start, last }
    }
}

impl Shard {
    fn validate(&self, ids: &mut BTreeSet<ShardId>) -> Result<(), Invalid> {
        if !ids.insert(self.id) {
            return Err(Invalid::new(
                "id",
                format!("{} is used twice", self.id),
                "give every shard its own id",
            ));
        }
        let mut holders = BTreeSet::new();
        for (i, replica) in self.replicas.iter().enumerate() {
            if !holders.insert((&replica.instance, &replica.role)) {
                return Err(Invalid::new(
                    format!("replicas[{i}]"),
                    format!("{} holds role '{}' twice", replica.instance, replica.role),
                    "list each instance once a role",
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(interval: KeyRange, starts: &[u128]) -> ShardMap {
        let shards = starts.iter().enumerate().map(|(i, &start)| Shard {
            id: ShardId(u32::try_from(i).unwrap()),
            start: ShardKey(start),
            replicas: Vec::new(),
        });
        ShardMap { version: 1, interval, shards: shards.collect() }
    }

    #[test]
    fn example_of_paper_locates_key_618_in_shard_5() {
        let map = map(KeyRange::ALL, &[0, 100, 200, 300, 400, 500, 900]);
        map.validate().unwrap();
        let position = map.position(ShardKey(618)).unwrap();
        assert_eq!(map.shards[position].id, ShardId(5));
        assert_eq!(map.range(position).to_string(), "[500, 900)");
        assert_eq!(map.range(6).last, ShardKey::MAX);
    }

    #[test]
    fn shard_map_with_gap_overlap_or_key_outside_is_rejected() {
        let interval = KeyRange::new(ShardKey(10), Some(ShardKey(20))).unwrap();
        assert!(map(interval, &[10, 15]).validate().is_ok());
        for wrong in [&[][..], &[11], &[10, 10], &[10, 15, 12], &[10, 20]] {
            assert!(map(interval, wrong).validate().is_err(), "{wrong:?}");
        }
        assert_eq!(map(interval, &[10]).position(ShardKey(9)), None);
        assert_eq!(map(interval, &[10]).position(ShardKey(20)), None);
    }
}
