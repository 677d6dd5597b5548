//! Compiles a whole map in the memory of this process.

use std::sync::Arc;

use fairmesh_model::{KeyRange, ShardKey, ShardMap, StoreId};

use super::{
    HoldingInterner, Holdings, InvalidTable, SEGMENT_SHARDS, Segment, SegmentBuilder, SegmentMemory,
    ShardTable,
};

pub(super) fn compile(map: &ShardMap) -> Result<ShardTable, InvalidTable> {
    let mut numbers = HoldingInterner::default();
    let mut segments = Vec::new();
    for (i, shards) in map.shards.chunks(SEGMENT_SHARDS).enumerate() {
        let mut rows = SegmentBuilder::default();
        for shard in shards {
            let copies = shard.replicas.iter();
            let copies = copies.map(|copy| numbers.intern(&copy.instance, &copy.role, copy.state));
            rows.push(shard.id, shard.start, copies);
        }
        let last = match map.shards.get((i + 1) * SEGMENT_SHARDS) {
            Some(next) => ShardKey(next.start.0 - 1),
            None => map.interval.last,
        };
        let range = KeyRange { first: shards[0].start, last };
        segments.push(Segment::open(aligned(rows.encode(NO_STORE, range)))?);
    }
    let holdings = Holdings::read(numbers.encode(NO_STORE).into())?;
    ShardTable::new(map.version, map.interval, segments, holdings)
}

/// Store ID of tables that do not leave the process.
const NO_STORE: StoreId = StoreId(0);

/// An array of words aligned to a cache line.
struct AlignedWords {
    words: Vec<u64>,
    skip: usize,
}

impl AsRef<[u64]> for AlignedWords {
    fn as_ref(&self) -> &[u64] {
        &self.words[self.skip..]
    }
}

fn aligned(words: Vec<u64>) -> SegmentMemory {
    let mut shifted: Vec<u64> = Vec::with_capacity(words.len() + 7);
    let into_line = shifted.as_ptr().addr() % 64 / 8;
    let skip = if into_line == 0 { 0 } else { 8 - into_line };
    shifted.resize(skip, 0);
    shifted.extend_from_slice(&words);
    Arc::new(AlignedWords { words: shifted, skip })
}
