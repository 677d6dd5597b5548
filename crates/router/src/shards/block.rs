//! A block: the starts of sixteen shards, each with its entry, then the rests of the starts where the scale cuts any off,
//! then the copies.
//!
//! A line holds four starts and their four entries: whichever start is found, its entry came with it.

use fairmesh_model::{Shard, ShardId};

use super::{
    Scale,
    tree::{FAN_OUT, Line, lines},
};

/// Starts in a line.
const STARTS: usize = 4;
/// Lines of starts in a block.
const START_LINES: usize = FAN_OUT / STARTS;
/// The most copies of one shard that are used.
pub(super) const MOST_COPIES: usize = 0xfff;

/// Lines of a block before its copies.
pub(super) fn header(scale: Scale) -> usize {
    START_LINES + if scale.has_rest() { 2 } else { 0 }
}

/// The header of a block of up to sixteen shards.
pub(super) fn write(scale: Scale, shards: &[Shard], into: &mut Vec<Line>) {
    let first = into.len();
    into.extend([Line::FULL; START_LINES]);
    let mut from = 0;
    for (i, shard) in shards.iter().enumerate() {
        let copies = shard.replicas.len().min(MOST_COPIES) as u32;
        let line = &mut into[first + i / STARTS].0;
        line[i % STARTS] = scale.split(shard.start).0;
        line[STARTS + i % STARTS] = pack(shard.id, from, copies);
        from += copies;
    }
    if scale.has_rest() {
        into.extend_from_slice(&lines(shards.iter().map(|shard| scale.split(shard.start).1)));
    }
}

/// An entry: the id, then 20 bits where the shard's copies start among the block's, then 12 bits how many.
fn pack(id: ShardId, from: u32, copies: u32) -> u64 {
    u64::from(id.0) << 32 | u64::from(from) << 12 | u64::from(copies)
}

/// How many of a block's starts lie at or before the key.
#[inline]
pub(super) fn count(header: &[Line], word: u64, rest: u64) -> usize {
    let (starts, rests) = header.split_at(START_LINES);
    let mut n = 0;
    for line in starts {
        for start in &line.0[..STARTS] {
            n += usize::from(*start <= word);
        }
    }
    if !rests.is_empty() {
        let start = |i: usize| starts[i / STARTS].0[i % STARTS];
        while n > 0 && start(n - 1) == word && rests[(n - 1) / 8].0[(n - 1) % 8] > rest {
            n -= 1;
        }
    }
    n
}

/// The entry at `place`.
#[inline]
pub(super) fn entry(header: &[Line], place: usize) -> u64 {
    header[place / STARTS].0[STARTS + place % STARTS]
}
