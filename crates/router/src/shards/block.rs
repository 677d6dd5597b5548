//! A block: the starts of sixteen shards, each with its entry, then the copies.
//!
//! A line holds four starts and their four entries: whichever start is found, its entry came with it. What the scale cuts
//! off the starts lies apart, since it is hardly ever looked at.

use fairmesh_model::{Shard, ShardId};

use super::{
    Scale,
    tree::{FAN_OUT, Line, without_later},
};

/// Starts in a line.
const STARTS: usize = 4;
/// Lines of starts and entries in a block, before its copies.
pub(super) const HEADER: usize = FAN_OUT / STARTS;
/// The most copies of one shard that are used.
pub(super) const MOST_COPIES: usize = 0xfff;

/// The header of a block of up to sixteen shards.
pub(super) fn write(scale: Scale, shards: &[Shard], into: &mut Vec<Line>) {
    let first = into.len();
    into.extend([Line::FULL; HEADER]);
    let mut from = 0;
    for (i, shard) in shards.iter().enumerate() {
        let copies = shard.replicas.len().min(MOST_COPIES) as u32;
        let line = &mut into[first + i / STARTS].0;
        line[i % STARTS] = scale.split(shard.start).0;
        line[STARTS + i % STARTS] = pack(shard.id, from, copies);
        from += copies;
    }
}

/// An entry: the id, then 20 bits where the shard's copies start among the block's, then 12 bits how many.
fn pack(id: ShardId, from: u32, copies: u32) -> u64 {
    u64::from(id.0) << 32 | u64::from(from) << 12 | u64::from(copies)
}

/// How many of a block's starts lie at or before the key; `rests` are the block's where there are any.
#[inline]
pub(super) fn count(header: &[Line; HEADER], rests: Option<&[Line]>, word: u64, rest: u64) -> usize {
    let mut n = 0;
    for i in 0..STARTS {
        for line in header {
            n += usize::from(line.0[i] <= word);
        }
    }
    let start = |i: usize| header[i / STARTS].0[i % STARTS];
    without_later(n, start, rests, (word, rest))
}

/// The entry at `place`.
#[inline]
pub(super) fn entry(header: &[Line; HEADER], place: usize) -> u64 {
    header[place / STARTS].0[STARTS + place % STARTS]
}
