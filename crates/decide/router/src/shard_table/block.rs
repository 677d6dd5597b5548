//! A block: the starts, IDs and copies of sixteen shards. Unless all shards have the same number of copies, it also
//! contains the positions of the copies.
//!
//! All parts are adjacent, so that a lookup waits for memory only once: lines can be prefetched as soon as the block is
//! known. The bits of starts that the scale cuts off are stored elsewhere, since they are rarely read.

use super::block_tree::Line;

/// Number of shards per block.
pub(super) const BLOCK_SHARDS: usize = 16;
/// Number of lines with starts.
pub(super) const STARTS: usize = 2;
/// Position of the line with IDs.
pub(super) const IDS: usize = STARTS;
/// Position of the line with spans of copies, in layouts with different numbers of copies.
const SPANS: usize = IDS + 1;
/// Maximum number of copies stored per shard.
pub(super) const MAX_COPIES: usize = 0xfff;
/// Number of 32-bit integers per line.
const U32_PER_LINE: usize = 16;
/// Placeholder for a missing start. Only the greatest key reaches it.
pub(super) const NO_START: u64 = u64::MAX;

/// The layout shared by all blocks of a segment.
///
/// Most maps have the same number of copies for every shard, and few enough holders for 16-bit indices. Sixteen shards
/// with two copies each then take four lines instead of six.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Number of copies of each shard; `None` if the numbers differ.
    pub(super) uniform_copies: Option<u32>,
    /// Whether holder indices have 16 bits instead of 32.
    narrow: bool,
}

/// Position and number of one shard's copies among those of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u32,
    pub(super) len: u32,
}

impl Span {
    /// Packs into 20 bits of position and 12 bits of length.
    fn pack(self) -> u64 {
        u64::from(self.from << 12 | self.len)
    }

    #[inline]
    fn unpack(packed: u32) -> Self {
        Self { from: packed >> 12, len: packed & 0xfff }
    }
}

impl Shape {
    /// Creates the layout for holder indices below `holders`.
    pub(super) fn new(uniform_copies: Option<u32>, holders: u32) -> Self {
        Self { uniform_copies, narrow: holders <= 1 << 16 }
    }

    /// Number of lines before the copies.
    #[inline]
    pub(super) fn header_lines(self) -> usize {
        if self.uniform_copies.is_some() { SPANS } else { SPANS + 1 }
    }

    /// Number of lines for this number of copies.
    pub(super) fn lines_of(self, copies: usize) -> usize {
        copies.div_ceil(if self.narrow { 2 * U32_PER_LINE } else { U32_PER_LINE })
    }

    /// Number of lines per block, if all blocks have the same number.
    pub(super) fn stride(self) -> Option<usize> {
        self.uniform_copies
            .map(|uniform_copies| self.header_lines() + self.lines_of(BLOCK_SHARDS * uniform_copies as usize))
    }

    /// Returns the span of copies of the shard at `place` in a block.
    #[inline]
    pub(super) fn span(self, block: &[Line], place: usize) -> Option<Span> {
        match self.uniform_copies {
            Some(uniform_copies) => Some(Span { from: uniform_copies * place as u32, len: uniform_copies }),
            None => u32_at(block.get(SPANS..)?, place).map(Span::unpack),
        }
    }

    /// Returns the `i`-th copy in a block.
    #[inline]
    pub(super) fn copy(self, copies: &[Line], i: usize) -> Option<u32> {
        if !self.narrow {
            return u32_at(copies, i);
        }
        let four = copies.get(i / (2 * U32_PER_LINE))?[i % (2 * U32_PER_LINE) / 4];
        Some(u32::from((four >> (16 * (i % 4))) as u16))
    }

    /// Appends a block of up to sixteen shards, given the word, ID and copies of each.
    pub(super) fn write<'a>(self, shards: impl Iterator<Item = (u64, u32, &'a [u32])>, into: &mut Vec<Line>) {
        let first = into.len();
        into.extend([[NO_START; 8]; STARTS]);
        into.resize(first + self.stride().unwrap_or(self.header_lines()), [0; 8]);
        let mut from = 0;
        for (place, (word, id, copies)) in shards.enumerate() {
            let span = Span { from: from as u32, len: copies.len() as u32 };
            into[first + place / 8][place % 8] = word;
            put(&mut into[first + IDS], place, 32, u64::from(id));
            if self.uniform_copies.is_none() {
                put(&mut into[first + SPANS], place, 32, span.pack());
            }
            let header = first + self.header_lines();
            into.resize(into.len().max(header + self.lines_of(from + copies.len())), [0; 8]);
            let bits = if self.narrow { 16 } else { 32 };
            for &copy in copies {
                put(&mut into[header + from * bits / 512], from % (512 / bits), bits, u64::from(copy));
                from += 1;
            }
        }
    }
}

fn put(line: &mut Line, place: usize, bits: usize, number: u64) {
    line[place * bits / 64] |= number << (place * bits % 64);
}

/// Returns the 32-bit integer at `i`.
#[inline]
pub(super) fn u32_at(lines: &[Line], i: usize) -> Option<u32> {
    let pair = lines.get(i / U32_PER_LINE)?[i % U32_PER_LINE / 2];
    Some((pair >> (32 * (i % 2))) as u32)
}

/// Returns how many starts of a block are at or below the key. `rests` are those of the block, if any. Counts without
/// branches, since the position of a key is unpredictable.
#[inline]
pub(super) fn count_up_to(
    starts: &[Line; STARTS],
    rests: Option<&[Line; STARTS]>,
    (word, rest): (u64, u64),
) -> usize {
    let [low, high] = starts;
    let mut n = 0;
    for i in 0..8 {
        n += usize::from(low[i] <= word) + usize::from(high[i] <= word);
    }
    if let Some(rests) = rests {
        while n > 0 && start(starts, n - 1) == word && start(rests, n - 1) > rest {
            n -= 1;
        }
    }
    n
}

/// Returns the word of the start at `place`, or its rest.
#[inline]
pub(super) fn start(starts: &[Line; STARTS], place: usize) -> u64 {
    starts[place / 8][place % 8]
}
