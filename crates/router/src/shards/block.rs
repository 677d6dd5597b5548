//! A block: the starts of sixteen shards, each with its entry, then the copies.
//!
//! A line holds four starts and their four entries: whichever start is found, its entry came with it. What the scale cuts
//! off the starts lies apart, since it is hardly ever looked at.

use super::tree::{FAN_OUT, FULL, Line, without_later};

/// Starts in a line.
const STARTS: usize = 4;
/// Copies in a line.
pub(super) const COPIES: usize = 16;
/// Lines of starts and entries in a block, before its copies.
pub(super) const HEADER: usize = FAN_OUT / STARTS;
/// The most copies of one shard that are used.
pub(super) const MOST_COPIES: usize = 0xfff;

/// What a block says of one shard beside its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: u32,
    /// Where its copies start among the block's, and how many they are.
    pub(super) from: u32,
    pub(super) copies: u32,
}

impl Entry {
    /// The id, then 20 bits where the copies start, then 12 bits how many.
    fn pack(self) -> u64 {
        u64::from(self.id) << 32 | u64::from(self.from) << 12 | u64::from(self.copies)
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        Self { id: (word >> 32) as u32, from: (word >> 12) as u32 & 0xf_ffff, copies: word as u32 & 0xfff }
    }
}

/// Appends a block of up to sixteen shards: the word of each, its id and its copies.
pub(super) fn write<'a>(shards: impl Iterator<Item = (u64, u32, &'a [u32])>, into: &mut Vec<Line>) {
    let first = into.len();
    into.extend([FULL; HEADER]);
    let mut from = 0;
    for (i, (word, id, copies)) in shards.enumerate() {
        let copies = &copies[..copies.len().min(MOST_COPIES)];
        let line = &mut into[first + i / STARTS];
        line[i % STARTS] = word;
        line[STARTS + i % STARTS] = Entry { id, from: from as u32, copies: copies.len() as u32 }.pack();
        for &copy in copies {
            if from % COPIES == 0 {
                into.push([0; 8]);
            }
            into[first + HEADER + from / COPIES][from % COPIES / 2] |= u64::from(copy) << (32 * (from % 2));
            from += 1;
        }
    }
}

/// How many of a block's starts lie at or before the key; `rests` are the block's where there are any.
#[inline]
pub(super) fn count(header: &[Line; HEADER], rests: Option<&[Line; 2]>, word: u64, rest: u64) -> usize {
    let mut n = 0;
    for i in 0..STARTS {
        for line in header {
            n += usize::from(line[i] <= word);
        }
    }
    without_later(n, |i| start(header, i), rests, (word, rest))
}

/// The word of the start at `place`.
#[inline]
pub(super) fn start(header: &[Line; HEADER], place: usize) -> u64 {
    header[place / STARTS][place % STARTS]
}

/// The entry at `place`.
#[inline]
pub(super) fn entry(header: &[Line; HEADER], place: usize) -> Entry {
    Entry::unpack(header[place / STARTS][STARTS + place % STARTS])
}

/// The copy at `i` among those of a block.
#[inline]
pub(super) fn copy(copies: &[Line], i: usize) -> Option<u32> {
    let pair = copies.get(i / COPIES)?[i % COPIES / 2];
    Some((pair >> (32 * (i % 2))) as u32)
}
