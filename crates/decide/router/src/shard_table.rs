use std::fmt;

use fairmesh_model::{KeyRange, ShardId, ShardKey, ShardMap};

mod block;
mod block_tree;
mod build;
mod holdings;
mod segment;

pub use holdings::{Holding, HoldingInterner, Holdings};
pub use segment::{Segment, SegmentBuilder, SegmentMemory};

/// Number of shards per segment. A change of one shard rebuilds its segment, but smaller segments would make the list
/// of segments exceed the L1 cache. With two copies of each shard and 128-bit keys, a segment fills one large page of
/// two megabytes.
pub const SEGMENT_SHARDS: usize = 86_016;

/// A shard map compiled for lookups. It depends on neither endpoints nor caller, so one compilation per version is
/// shared.
///
/// Sixteen consecutive shards form a block with adjacent starts, IDs and copies, so that a lookup among millions of
/// shards has cache misses in only one place. A small tree finds the block. Binary search over one array of starts was
/// rejected: it has a cache miss at each of its last eight steps. Blocks and trees are stored in [segments](Segment)
/// without pointers, so that one process can write them into shared memory for others. A new version shares unchanged
/// segments.
pub struct ShardTable {
    version: u64,
    interval: KeyRange,
    len: u32,
    /// First key of each segment, with the number of shards before it.
    firsts: Box<[u128]>,
    before: Box<[u32]>,
    segments: Box<[Segment]>,
    holdings: Holdings,
}

/// Why a shard table is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shard table is damaged or of another release: {0}")]
pub struct InvalidTable(&'static str);

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLocation {
    /// The shard.
    pub shard: ShardId,
    /// Position of the shard in the map.
    pub position: u32,
    segment: u32,
    /// First line of the block's copies, and position of the shard's copies among them.
    line: u32,
    from: u32,
    len: u32,
}

impl ShardLocation {
    /// Number of copies of the shard.
    #[inline]
    pub fn copies(&self) -> usize {
        self.len as usize
    }
}

/// An order-preserving map from 128-bit keys to 64-bit words: relative to the first key, without low bits that the
/// starts do not need. The cut-off bits are the rest, which is compared only if words are equal.
#[derive(Clone, Copy, Debug)]
struct KeyScale {
    origin: u128,
    shift: u32,
}

impl KeyScale {
    /// Computes the scale from the last start rather than the interval, which is often the whole key space even if keys
    /// are small.
    fn new(origin: ShardKey, last: ShardKey) -> Self {
        let bits = 128 - (last.0 - origin.0).leading_zeros();
        Self { origin: origin.0, shift: bits.saturating_sub(64) }
    }

    /// Splits a key into its word and rest. A key that does not fit is above every start, and maps to the greatest
    /// word.
    #[inline]
    fn split(self, key: ShardKey) -> (u64, u64) {
        let relative = key.0.wrapping_sub(self.origin);
        let rest = relative & ((1 << self.shift) - 1);
        match u64::try_from(relative >> self.shift) {
            // The rest has at most 64 bits, since the shift is at most 64.
            Ok(word) => (word, rest as u64),
            Err(_) => (u64::MAX, u64::MAX),
        }
    }

    /// The inverse of [`split`](Self::split).
    fn join(self, word: u64, rest: u64) -> ShardKey {
        ShardKey(self.origin.wrapping_add(u128::from(word) << self.shift | u128::from(rest)))
    }

    fn has_rest(self) -> bool {
        self.shift > 0
    }
}

impl ShardTable {
    /// Compiles a valid map in the memory of this process. Copies of a shard beyond the first 4,095 are ignored.
    ///
    /// # Panics
    /// The map is not valid.
    pub fn compile(map: &ShardMap) -> Self {
        build::compile(map).unwrap_or_else(|invalid| unreachable!("of a valid map: {invalid}"))
    }

    /// Assembles a map from segments.
    ///
    /// # Errors
    /// Segments have gaps or overlap, come from different stores, or refer to holders that are not listed.
    pub fn new(
        version: u64,
        interval: KeyRange,
        segments: Vec<Segment>,
        holdings: Holdings,
    ) -> Result<Self, InvalidTable> {
        let (mut next, mut len) = (Some(interval.first.0), 0_u32);
        let mut before = Vec::with_capacity(segments.len());
        for segment in &segments {
            if Some(segment.range().first.0) != next {
                return Err(InvalidTable("segments do not follow one another"));
            }
            if segment.holders() as usize > holdings.len() || segment.store() != holdings.store() {
                return Err(InvalidTable("a segment and the list of holders do not match"));
            }
            next = segment.range().last.0.checked_add(1);
            before.push(len);
            len = len.checked_add(segment.len() as u32).ok_or(InvalidTable("there are too many shards"))?;
        }
        if segments.is_empty() || next != interval.last.0.checked_add(1) {
            return Err(InvalidTable("segments do not end where the map does"));
        }
        let firsts = segments.iter().map(|segment| segment.range().first.0).collect();
        let (before, segments) = (before.into(), segments.into());
        Ok(Self { version, interval, len, firsts, before, segments, holdings })
    }

    /// The version of the map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The interval of keys that the map covers.
    pub fn interval(&self) -> KeyRange {
        self.interval
    }

    /// Number of shards.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the map is empty: always false for a valid map.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the shard that holds `key`, or `None` outside the interval.
    #[inline]
    pub fn locate(&self, key: ShardKey) -> Option<ShardLocation> {
        if !self.interval.contains(key) {
            return None;
        }
        let number = self.firsts.partition_point(|first| *first <= key.0).checked_sub(1)?;
        let found = self.segments.get(number)?.locate(key)?;
        Some(ShardLocation {
            shard: found.id,
            position: self.before.get(number)? + found.place,
            segment: number as u32,
            line: found.line,
            from: found.from,
            len: found.copies,
        })
    }

    /// Returns the keys of a shard that [`locate`](Self::locate) of this map returned.
    pub fn range(&self, located: &ShardLocation) -> KeyRange {
        let number = located.segment as usize;
        let (segment, place) = (&self.segments[number], located.position - self.before[number]);
        let first = segment.start(place).unwrap_or(segment.range().first);
        let last = segment.start(place + 1).map_or(segment.range().last, |next| ShardKey(next.0 - 1));
        KeyRange { first, last }
    }

    /// Returns the `i`-th copy of a shard that [`locate`](Self::locate) of this map returned, as an index into
    /// [`holdings`](Self::holdings). `i` must be below the shard's number of [copies](ShardLocation::copies).
    #[inline]
    pub fn copy(&self, located: &ShardLocation, i: usize) -> u32 {
        let copy =
            self.segments[located.segment as usize].copy(located.line as usize, located.from as usize + i);
        // The copy exists, since it was checked when the segment was read.
        copy.unwrap_or_default()
    }

    /// All combinations of endpoint, role and state that hold a copy.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// Size of the tables that lookups read, in bytes, without names.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::bytes).sum()
    }
}

impl fmt::Debug for ShardTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardTable")
            .field("version", &self.version)
            .field("interval", &self.interval)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
