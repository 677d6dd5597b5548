use std::fmt;

use fairmesh_model::{KeyRange, ShardId, ShardKey, ShardMap};

mod block;
mod build;
mod holdings;
mod segment;
mod tree;

pub use holdings::{Holding, HoldingNumbers, Holdings};
pub use segment::{Rows, Segment, Words};

/// How many shards a segment is made of. A change of one shard makes its segment anew; smaller ones would make a list of them
/// that does not stay in the nearest cache. So many with two copies each and keys of 128 bits fill one large page of two megabytes.
pub const SEGMENT_SHARDS: usize = 86_016;

/// A shard map compiled for look-ups. Independent of endpoints and caller, so compile it once a version and share it.
///
/// Sixteen consecutive shards make a block: their starts, ids and copies side by side, so that a look-up in millions of
/// shards misses the cache in one place; a small tree above finds the block. A binary search over one array of starts
/// was rejected: it misses at each of its last eight steps. Blocks and trees lie in [segments](Segment), which are flat, so
/// that one process can make them and others read them where they lie; a new version shares those that did not change.
pub struct Shards {
    version: u64,
    interval: KeyRange,
    len: u32,
    /// Where each segment starts, and how many shards lie before it.
    firsts: Box<[u128]>,
    before: Box<[u32]>,
    segments: Box<[Segment]>,
    holdings: Holdings,
}

/// Why a table that was handed over cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a shard table is damaged or another release's: {0}")]
pub struct Unfit(&'static str);

/// Where a key lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The shard.
    pub shard: ShardId,
    /// Where it stands in the map.
    pub position: u32,
    segment: u32,
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
    /// By the last start, not by the interval: the interval is often "everything" where keys are small.
    fn new(origin: ShardKey, last: ShardKey) -> Self {
        let bits = 128 - (last.0 - origin.0).leading_zeros();
        Self { origin: origin.0, shift: bits.saturating_sub(64) }
    }

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

    /// The key that was split.
    fn join(self, word: u64, rest: u64) -> ShardKey {
        ShardKey(self.origin.wrapping_add(u128::from(word) << self.shift | u128::from(rest)))
    }

    fn has_rest(self) -> bool {
        self.shift > 0
    }
}

impl Shards {
    /// Compiles a valid map in the memory of this process. Of more than 4,095 copies of one shard, the first are used.
    ///
    /// # Panics
    /// When the map is not valid.
    pub fn compile(map: &ShardMap) -> Self {
        build::compile(map).unwrap_or_else(|unfit| unreachable!("of a valid map: {unfit}"))
    }

    /// The map that segments make together.
    ///
    /// # Errors
    /// When they leave keys of the interval out, overlap, come from several stores, or name holders that are not listed.
    pub fn new(
        version: u64,
        interval: KeyRange,
        segments: Vec<Segment>,
        holdings: Holdings,
    ) -> Result<Self, Unfit> {
        let (mut next, mut len) = (Some(interval.first.0), 0_u32);
        let mut before = Vec::with_capacity(segments.len());
        for segment in &segments {
            if Some(segment.range().first.0) != next {
                return Err(Unfit("segments do not follow one another"));
            }
            if segment.holders() as usize > holdings.len() || segment.store() != holdings.store() {
                return Err(Unfit("a segment does not go with the list of holders"));
            }
            next = segment.range().last.0.checked_add(1);
            before.push(len);
            len = len.checked_add(segment.len() as u32).ok_or(Unfit("there are too many shards"))?;
        }
        if segments.is_empty() || next != interval.last.0.checked_add(1) {
            return Err(Unfit("segments do not end where the map does"));
        }
        let firsts = segments.iter().map(|segment| segment.range().first.0).collect();
        let (before, segments) = (before.into(), segments.into());
        Ok(Self { version, interval, len, firsts, before, segments, holdings })
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
        if !self.interval.contains(key) {
            return None;
        }
        let number = self.firsts.partition_point(|first| *first <= key.0).checked_sub(1)?;
        let found = self.segments.get(number)?.locate(key)?;
        Some(Located {
            shard: found.id,
            position: self.before.get(number)? + found.place,
            segment: number as u32,
            line: found.line,
            from: found.from,
            len: found.copies,
        })
    }

    /// The keys of a shard that [`locate`](Self::locate) of this very map found.
    pub fn range(&self, located: &Located) -> KeyRange {
        let number = located.segment as usize;
        let (segment, place) = (&self.segments[number], located.position - self.before[number]);
        let first = segment.start(place).unwrap_or(segment.range().first);
        let last = segment.start(place + 1).map_or(segment.range().last, |next| ShardKey(next.0 - 1));
        KeyRange { first, last }
    }

    /// The `i`-th copy of a shard that [`locate`](Self::locate) of this very map found, below its number of
    /// [copies](Located::copies), as the number of one of the [`holdings`](Self::holdings).
    #[inline]
    pub fn copy(&self, located: &Located, i: usize) -> u32 {
        let copy =
            self.segments[located.segment as usize].copy(located.line as usize, located.from as usize + i);
        // There is one, as was checked when the segment was read.
        copy.unwrap_or_default()
    }

    /// Every combination of endpoint, role and state that holds a copy.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// The memory that look-ups use, in bytes, without that of names.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::bytes).sum()
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
