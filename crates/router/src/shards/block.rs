//! A block: the starts of sixteen shards, their ids, where their copies stand unless all have the same number, and the copies.
//!
//! All of it lies together, so that a look-up waits for memory once: what is wanted can be asked for as soon as the block is known.
//! What the scale cuts off the starts lies apart, since it is hardly ever looked at.

use super::tree::Line;

/// How many shards a block has.
pub(super) const SHARDS: usize = 16;
/// Lines of starts.
pub(super) const STARTS: usize = 2;
/// The line of ids.
pub(super) const IDS: usize = STARTS;
/// The line that says where copies stand, in a shape where that differs.
const SPANS: usize = IDS + 1;
/// The most copies of one shard that are used.
pub(super) const MOST_COPIES: usize = 0xfff;
/// Numbers of 32 bits in a line.
const HALVES: usize = 16;
/// What stands where there is no start: no key reaches it but the greatest of all.
pub(super) const NO_START: u64 = u64::MAX;

/// What all blocks of a segment have in common.
///
/// Most maps have the same number of copies of every shard and fewer holders than 16 bits count. Then sixteen shards with two copies
/// each are four lines and not six.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// How many copies each shard has; `None` where that differs.
    pub(super) each: Option<u32>,
    /// Whether the numbers of holders have 16 bits, and not 32.
    narrow: bool,
}

/// The copies of one shard among those of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u32,
    pub(super) len: u32,
}

impl Span {
    /// 20 bits where they start, 12 bits how many.
    fn pack(self) -> u64 {
        u64::from(self.from << 12 | self.len)
    }

    #[inline]
    fn unpack(half: u32) -> Self {
        Self { from: half >> 12, len: half & 0xfff }
    }
}

impl Shape {
    /// That of blocks whose holders are numbered below `holders`.
    pub(super) fn new(each: Option<u32>, holders: u32) -> Self {
        Self { each, narrow: holders <= 1 << 16 }
    }

    /// Lines before the copies.
    #[inline]
    pub(super) fn head(self) -> usize {
        if self.each.is_some() { SPANS } else { SPANS + 1 }
    }

    /// Lines that so many copies take.
    pub(super) fn lines_of(self, copies: usize) -> usize {
        copies.div_ceil(if self.narrow { 2 * HALVES } else { HALVES })
    }

    /// Lines of a block, where every block has as many.
    pub(super) fn stride(self) -> Option<usize> {
        self.each.map(|each| self.head() + self.lines_of(SHARDS * each as usize))
    }

    /// Where the copies of the shard at `place` stand in a block.
    #[inline]
    pub(super) fn span(self, block: &[Line], place: usize) -> Option<Span> {
        match self.each {
            Some(each) => Some(Span { from: each * place as u32, len: each }),
            None => half(block.get(SPANS..)?, place).map(Span::unpack),
        }
    }

    /// The copy at `i` among those of a block.
    #[inline]
    pub(super) fn copy(self, copies: &[Line], i: usize) -> Option<u32> {
        if !self.narrow {
            return half(copies, i);
        }
        let four = copies.get(i / (2 * HALVES))?[i % (2 * HALVES) / 4];
        Some(u32::from((four >> (16 * (i % 4))) as u16))
    }

    /// Appends a block of up to sixteen shards: the word of each, its id and its copies.
    pub(super) fn write<'a>(self, shards: impl Iterator<Item = (u64, u32, &'a [u32])>, into: &mut Vec<Line>) {
        let first = into.len();
        into.extend([[NO_START; 8]; STARTS]);
        into.resize(first + self.stride().unwrap_or(self.head()), [0; 8]);
        let mut from = 0;
        for (place, (word, id, copies)) in shards.enumerate() {
            let span = Span { from: from as u32, len: copies.len() as u32 };
            into[first + place / 8][place % 8] = word;
            put(&mut into[first + IDS], place, 32, u64::from(id));
            if self.each.is_none() {
                put(&mut into[first + SPANS], place, 32, span.pack());
            }
            let head = first + self.head();
            into.resize(into.len().max(head + self.lines_of(from + copies.len())), [0; 8]);
            let bits = if self.narrow { 16 } else { 32 };
            for &copy in copies {
                put(&mut into[head + from * bits / 512], from % (512 / bits), bits, u64::from(copy));
                from += 1;
            }
        }
    }
}

fn put(line: &mut Line, place: usize, bits: usize, number: u64) {
    line[place * bits / 64] |= number << (place * bits % 64);
}

/// The number of 32 bits at `i`.
#[inline]
pub(super) fn half(lines: &[Line], i: usize) -> Option<u32> {
    let pair = lines.get(i / HALVES)?[i % HALVES / 2];
    Some((pair >> (32 * (i % 2))) as u32)
}

/// How many of a block's starts lie at or before the key; `rests` are the block's where there are any. Counts without
/// branching: where the key falls is not predictable.
#[inline]
pub(super) fn count(
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

/// The word of the start at `place`, or its rest.
#[inline]
pub(super) fn start(starts: &[Line; STARTS], place: usize) -> u64 {
    starts[place / 8][place % 8]
}
