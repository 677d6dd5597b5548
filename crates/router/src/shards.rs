use std::fmt;

use fairmesh_model::{InstanceId, KeyRange, ReplicaState, Role, ShardId, ShardKey, ShardMap};

mod block;
mod build;
mod tree;

use tree::{FAN_OUT, Line, Tree};

/// A shard map compiled for look-ups. Independent of endpoints and caller, so compile it once a version and share it.
///
/// Sixteen consecutive shards make a block: their starts, ids and copies side by side, so that a look-up in millions of
/// shards misses the cache in one place; a small tree above finds the block. A binary search over one array of starts
/// was rejected: it misses at each of its last eight steps. All arrays are flat, fit to be mapped from a file.
pub struct Shards {
    version: u64,
    interval: KeyRange,
    len: u32,
    scale: Scale,
    tree: Tree,
    /// The line at which each block starts.
    blocks: Box<[u32]>,
    lines: Box<[Line]>,
    /// Two lines a block, or none where the scale cuts nothing off.
    rests: Box<[Line]>,
    holdings: Box<[Holding]>,
}

/// Who holds copies, for what and how: each combination once, however many shards share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holding {
    /// The endpoint.
    pub instance: InstanceId,
    /// What the copy is for.
    pub role: Role,
    /// Whether calls go to it.
    pub state: ReplicaState,
}

/// Where a key lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The shard.
    pub shard: ShardId,
    /// Where it stands in the map.
    pub position: u32,
    /// The first line of its block's copies, and its own among those.
    line: u32,
    from: u32,
    len: u32,
}

impl Located {
    /// How many copies the shard has.
    #[inline]
    pub fn copies(&self) -> usize {
        self.len as usize
    }
}

/// How keys of 128 bits become words of 64 that keep their order: relative to the first key, cut to the bits that the
/// starts use. What is cut off is kept as the rest and compared only where words are equal.
#[derive(Clone, Copy, Debug)]
struct Scale {
    origin: u128,
    shift: u32,
}

impl Scale {
    /// The word and rest of a key; a key above every start that fits counts as the greatest.
    #[inline]
    fn split(self, key: ShardKey) -> (u64, u64) {
        let relative = key.0.wrapping_sub(self.origin);
        let rest = relative & ((1 << self.shift) - 1);
        match u64::try_from(relative >> self.shift) {
            // The rest has at most 64 bits since the shift is at most 64.
            Ok(word) => (word, rest as u64),
            Err(_) => (u64::MAX, u64::MAX),
        }
    }

    fn has_rest(self) -> bool {
        self.shift > 0
    }
}

impl Shards {
    /// Compiles a valid map. Of more than 4,095 copies of one shard, the first are used.
    pub fn compile(map: &ShardMap) -> Self {
        build::compile(map)
    }

    /// The version of the map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The keys that the map speaks for.
    pub fn interval(&self) -> KeyRange {
        self.interval
    }

    /// How many shards there are.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is none, which no valid map is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The shard that holds `key`, or `None` outside the interval.
    #[inline]
    pub fn locate(&self, key: ShardKey) -> Option<Located> {
        if !self.interval.contains(key) || self.len == 0 {
            return None;
        }
        let (word, rest) = self.scale.split(key);
        let number = self.tree.find(word, rest);
        let line = self.blocks[number] as usize;
        let header = self.lines.get(line..)?.first_chunk::<{ block::HEADER }>()?;
        let rests = self.rests.get(number * 2..number * 2 + 2);
        let inside = (self.len as usize - number * FAN_OUT).min(FAN_OUT);
        let place = block::count(header, rests, word, rest).min(inside).saturating_sub(1);
        let entry = block::entry(header, place);
        Some(Located {
            shard: ShardId((entry >> 32) as u32),
            position: (number * FAN_OUT + place) as u32,
            line: (line + block::HEADER) as u32,
            from: (entry >> 12) as u32 & 0xf_ffff,
            len: entry as u32 & 0xfff,
        })
    }

    /// The `i`-th copy of a shard that [`locate`](Self::locate) of this very map found, below its number of
    /// [copies](Located::copies), as a position in [`holdings`](Self::holdings).
    #[inline]
    pub fn copy(&self, located: &Located, i: usize) -> u32 {
        let i = located.from as usize + i;
        let pair = self.lines[located.line as usize + i / 16].0[i % 16 / 2];
        (pair >> (32 * (i % 2))) as u32
    }

    /// Every combination of endpoint, role and state that holds a copy.
    pub fn holdings(&self) -> &[Holding] {
        &self.holdings
    }

    /// The memory that look-ups use, in bytes, without that of names.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.rests) + size_of_val(&*self.blocks) + self.tree.bytes()
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("version", &self.version)
            .field("interval", &self.interval)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
