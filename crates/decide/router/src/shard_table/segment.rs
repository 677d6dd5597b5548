//! A segment: the shards of a key interval as one array of words. It is read in place, in this process's memory or a
//! mapping made by another process. It contains no address, and every offset follows from three counts, so that a
//! damaged segment can do little harm.
//!
//! | lines of 64 bytes | content |
//! |---|---|
//! | 2 | header |
//! | 5 a node | the tree over the blocks, by level from the root down |
//! | 1 for 16 blocks | the line at which each block starts, counted from the first, unless all have as many |
//! | … | blocks |
//! | 2 a block | rests, if the scale cuts off bits |
//!
//! The header contains: magic, format version and shift, checksum of all following words, store id, first and last
//! key, number of shards, lines of blocks, the bound of holder indices, shift of marks, and one more than the copies
//! of each shard or 0. Words are in the machine's byte order; segments never leave it.

use std::{fmt, hint::black_box, sync::Arc};

use fairmesh_model::{KeyRange, ShardId, ShardKey, StoreId, arith::mix64};

use super::{
    InvalidTable, KeyScale,
    block::{self, BLOCK_SHARDS, IDS, MAX_COPIES, NO_START, STARTS, Shape},
    block_tree::{self, Level, Line},
};

const MAGIC: u64 = u64::from_le_bytes(*b"fairshrd");
const VERSION: u64 = 2;
/// Number of lines before the tree.
const HEADER_LINES: usize = 2;
/// Number of words before the checksummed part.
const CHECKED_FROM: usize = 3;

/// The memory of a segment.
pub type SegmentMemory = Arc<dyn AsRef<[u64]> + Send + Sync>;

/// The shards of an interval of keys, read in place. Cheap to clone.
#[derive(Clone)]
pub struct Segment {
    words: SegmentMemory,
    store: StoreId,
    range: KeyRange,
    scale: KeyScale,
    len: u32,
    /// Exclusive upper bound of holder indices.
    holders: u32,
    shape: Shape,
    levels: Box<[Level]>,
    /// Number of bits by which words are shifted right to get the tree's marks.
    marks: u32,
    /// First line of each part.
    offsets: u32,
    blocks: u32,
    rests: u32,
    /// The line after the last one. Shared memory may be larger.
    end: u32,
}

/// Result of a lookup in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentLocation {
    pub(super) id: ShardId,
    pub(super) place: u32,
    /// First line of the block's copies, and position of the shard's copies among them.
    pub(super) line: u32,
    pub(super) from: u32,
    pub(super) copies: u32,
}

/// Builds a segment from shards by ascending start, each with the indices of its holders.
#[derive(Debug, Default)]
pub struct SegmentBuilder {
    shards: Vec<(ShardId, ShardKey)>,
    /// End of each shard's copies in `copies`.
    ends: Vec<u32>,
    copies: Vec<u32>,
}

impl SegmentBuilder {
    /// Appends a shard. Copies beyond the first 4,095 are ignored.
    pub fn push(&mut self, id: ShardId, start: ShardKey, copies: impl IntoIterator<Item = u32>) {
        self.shards.push((id, start));
        self.copies.extend(copies.into_iter().take(MAX_COPIES));
        self.ends.push(self.copies.len() as u32);
    }

    fn copies(&self, i: usize) -> &[u32] {
        let from = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.copies[from..self.ends[i] as usize]
    }

    /// Number of copies of each shard; `None` if the numbers differ.
    fn uniform_copies(&self) -> Option<u32> {
        let first = self.copies(0).len();
        (1..self.shards.len()).all(|i| self.copies(i).len() == first).then_some(first as u32)
    }

    /// Encodes the segment for `range`, which must contain the starts of all shards.
    ///
    /// # Panics
    /// There is no shard.
    pub fn encode(&self, store: StoreId, range: KeyRange) -> Vec<u64> {
        let scale = KeyScale::new(range.first, self.shards[self.shards.len() - 1].1);
        let holders = self.copies.iter().max().map_or(0, |last| last.saturating_add(1));
        let shape = Shape::new(self.uniform_copies(), holders);
        let starts: Vec<(u64, u64)> = self.shards.iter().map(|(_, start)| scale.split(*start)).collect();
        let mark_shift = block_tree::shift(starts[starts.len() - 1].0);
        let (mut blocks, mut rests, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        for first in (0..self.shards.len()).step_by(BLOCK_SHARDS) {
            let block = first..(first + BLOCK_SHARDS).min(self.shards.len());
            offsets.push(blocks.len() as u32);
            shape
                .write(block.clone().map(|i| (starts[i].0, self.shards[i].0.0, self.copies(i))), &mut blocks);
            if scale.has_rest() {
                let mut lines = [[NO_START; 8]; STARTS];
                block.zip(lines.as_flattened_mut()).for_each(|(i, rest)| *rest = starts[i].1);
                rests.extend(lines);
            }
        }
        let mut lines = vec![[0; 8]; HEADER_LINES];
        block_tree::write(
            starts.iter().step_by(BLOCK_SHARDS).map(|start| block_tree::mark(start.0, mark_shift)).collect(),
            &mut lines,
        );
        if shape.uniform_copies.is_none() {
            lines.extend(offset_lines(&offsets));
        }
        let block_lines = blocks.len() as u64;
        lines.append(&mut blocks);
        lines.append(&mut rests);
        let (store, first, last) =
            (u128_to_words(store.0), u128_to_words(range.first.0), u128_to_words(range.last.0));
        let version = VERSION << 32 | u64::from(scale.shift);
        lines[0] = [MAGIC, version, 0, store[0], store[1], first[0], first[1], last[0]];
        let (len, holders) = (self.shards.len() as u64, u64::from(holders));
        let uniform_copies = shape.uniform_copies.map_or(0, |uniform_copies| u64::from(uniform_copies) + 1);
        lines[1] = [last[1], len, block_lines, holders, u64::from(mark_shift), uniform_copies, 0, 0];
        let mut words: Vec<u64> = lines.into_flattened();
        write_checksum(&mut words);
        words
    }
}

/// Writes the checksum.
pub(super) fn write_checksum(words: &mut [u64]) {
    words[CHECKED_FROM - 1] = checksum(words);
}

/// Encodes offsets, sixteen per line.
fn offset_lines(offsets: &[u32]) -> impl Iterator<Item = Line> {
    offsets.chunks(2 * 8).map(|sixteen| {
        let mut line = [0; 8];
        sixteen
            .iter()
            .enumerate()
            .for_each(|(i, offset)| line[i / 2] |= u64::from(*offset) << (32 * (i % 2)));
        line
    })
}

fn u128_to_words(wide: u128) -> [u64; 2] {
    [(wide >> 64) as u64, wide as u64]
}

fn words_to_u128(words: &[u64], at: usize) -> u128 {
    u128::from(words[at]) << 64 | u128::from(words[at + 1])
}

/// Computes the checksum. It detects damage, not malice: a writer of segments could write a valid segment of a wrong
/// map anyway. Four lanes are used, since a single one would wait for its own result at each step.
fn checksum(segment: &[u64]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = &segment[CHECKED_FROM..];
    let mut lanes = [segment[0], segment[1], 3, words.len() as u64];
    let (fours, rest) = words.as_chunks::<4>();
    for four in fours {
        for (lane, word) in lanes.iter_mut().zip(four) {
            *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    let rest = rest.iter().fold(0, |sum, word| mix64(sum ^ word));
    lanes.into_iter().fold(rest, |sum, lane| mix64(sum ^ lane))
}

impl Segment {
    /// Reads a segment in place after a complete check of sizes, checksum, order of starts and nodes, and whether every
    /// copy is inside its block.
    ///
    /// # Errors
    /// The first defect found.
    pub fn read(words: SegmentMemory) -> Result<Self, InvalidTable> {
        let segment = Self::open(words)?;
        segment.check()?;
        Ok(segment)
    }

    /// Reads the header, and checks that all described parts exist.
    pub(super) fn open(words: SegmentMemory) -> Result<Self, InvalidTable> {
        let all: &[u64] = (*words).as_ref();
        let header = all.get(..HEADER_LINES * 8).ok_or(InvalidTable("it is truncated"))?;
        if header[0] != MAGIC || header[1] >> 32 != VERSION {
            return Err(InvalidTable("it has another format"));
        }
        let (first, last) = (ShardKey(words_to_u128(header, 5)), ShardKey(words_to_u128(header, 7)));
        let scale = KeyScale { origin: first.0, shift: header[1] as u32 };
        let [len, block_lines, holders, marks, uniform_copies] =
            [9, 10, 11, 12, 13].map(|at| u32::try_from(header[at]).unwrap_or(u32::MAX));
        let sensible = marks < u64::BITS && uniform_copies as usize <= MAX_COPIES + 1 && holders < u32::MAX;
        if first > last || scale.shift > 64 || len == 0 || !sensible {
            return Err(InvalidTable("its header is inconsistent"));
        }
        let shape = Shape::new(uniform_copies.checked_sub(1), holders);
        let count = (len as usize).div_ceil(BLOCK_SHARDS);
        if shape.stride().is_some_and(|stride| stride * count != block_lines as usize) {
            return Err(InvalidTable("its blocks do not have the number of lines that its header states"));
        }
        let (levels, offsets) = block_tree::levels(count, HEADER_LINES as u64);
        let blocks = offsets + if shape.uniform_copies.is_some() { 0 } else { count.div_ceil(16) as u64 };
        let rests = blocks + u64::from(block_lines);
        let end = rests + if scale.has_rest() { (STARTS * count) as u64 } else { 0 };
        if end * 8 > all.len() as u64 || end > u64::from(u32::MAX) {
            return Err(InvalidTable("its size differs from its header"));
        }
        let (store, range) = (StoreId(words_to_u128(header, 3)), KeyRange { first, last });
        let (offsets, blocks, rests, end) = (offsets as u32, blocks as u32, rests as u32, end as u32);
        let levels = levels.into();
        Ok(Self {
            words,
            store,
            range,
            scale,
            len,
            holders,
            shape,
            levels,
            marks,
            offsets,
            blocks,
            rests,
            end,
        })
    }

    fn check(&self) -> Result<(), InvalidTable> {
        let words = self.lines().get(..self.end as usize).unwrap_or_default().as_flattened();
        if words.get(CHECKED_FROM - 1) != Some(&checksum(words)) {
            return Err(InvalidTable("its checksum is wrong"));
        }
        let mut marks = Vec::new();
        let (mut before, mut line) = (None, self.blocks as usize);
        for number in 0..self.block_count() {
            if self.line_of(self.lines(), number) != Some(line) {
                return Err(InvalidTable("a block does not start at the end of the one before it"));
            }
            let block = self.block(number).ok_or(InvalidTable("a block is out of bounds"))?;
            let mut copies = 0;
            for place in 0..self.shards_in_block(number) {
                let start = block.start(place);
                if before.is_some_and(|before| before >= start) {
                    return Err(InvalidTable("its starts do not ascend"));
                }
                before = Some(start);
                if place == 0 {
                    marks.push(block_tree::mark(start.0, self.marks));
                }
                let span =
                    self.shape.span(block.lines, place).ok_or(InvalidTable("a block is out of bounds"))?;
                if span.from != copies {
                    return Err(InvalidTable("copies do not start at the end of those before them"));
                }
                copies += span.len;
            }
            self.check_copies(line + self.shape.header_lines(), copies)?;
            let lines = self.shape.header_lines() + self.shape.lines_of(copies as usize);
            line += self.shape.stride().unwrap_or(lines);
        }
        if line != self.rests as usize {
            return Err(InvalidTable("its blocks do not end where its header states"));
        }
        let greatest = before.map_or(0, |(word, _)| word);
        let mut tree = Vec::new();
        block_tree::write(marks, &mut tree);
        match self.lines().get(HEADER_LINES..self.offsets as usize) {
            Some(found) if *found == tree && self.marks == block_tree::shift(greatest) => Ok(()),
            _ => Err(InvalidTable("its tree does not lead to its blocks")),
        }
    }

    fn check_copies(&self, first: usize, count: u32) -> Result<(), InvalidTable> {
        let lines =
            self.lines().get(first..self.rests as usize).ok_or(InvalidTable("copies are out of bounds"))?;
        let known = |i: usize| self.shape.copy(lines, i).is_some_and(|copy| copy < self.holders);
        if (0..count as usize).all(known) { Ok(()) } else { Err(InvalidTable("a copy has no holder")) }
    }

    /// The interval of keys in the segment.
    pub fn range(&self) -> KeyRange {
        self.range
    }

    /// ID of the store from which the map comes.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Number of shards.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the segment is empty: always false, since it has at least one shard.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The greatest holder index plus one.
    pub fn holders(&self) -> u32 {
        self.holders
    }

    /// The shards by ascending start, each with the indices of its holders.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, ShardKey, impl Iterator<Item = u32>)> {
        let shards = move |number: usize| {
            self.block(number).into_iter().flat_map(move |block| {
                (0..self.shards_in_block(number)).filter_map(move |place| {
                    let (word, rest) = block.start(place);
                    let span = self.shape.span(block.lines, place)?;
                    let copies = move |i| self.copy(block.copies, (span.from + i) as usize);
                    let id = ShardId(block::u32_at(&block.lines[IDS..], place)?);
                    Some((id, self.scale.join(word, rest), (0..span.len).filter_map(copies)))
                })
            })
        };
        (0..self.block_count()).flat_map(shards)
    }

    /// Returns the first key of the shard at this position, if it exists.
    pub(super) fn start(&self, place: u32) -> Option<ShardKey> {
        if place >= self.len {
            return None;
        }
        let (word, rest) = self.block(place as usize / BLOCK_SHARDS)?.start(place as usize % BLOCK_SHARDS);
        Some(self.scale.join(word, rest))
    }

    /// Size of the segment in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val((*self.words).as_ref())
    }

    /// Returns the shard that holds a key in the segment's range.
    #[inline]
    pub(super) fn locate(&self, key: ShardKey) -> Option<SegmentLocation> {
        let split = self.scale.split(key);
        let mut number = block_tree::find(&self.levels, self.lines(), block_tree::mark(split.0, self.marks))?;
        let mut block = self.block(number)?;
        let mut count = block.count(split);
        if count == 0 && number > 0 {
            number = self.before(number, split);
            block = self.block(number)?;
            count = block.count(split);
        }
        let place = count.min(self.shards_in_block(number)).saturating_sub(1);
        let span = self.shape.span(block.lines, place)?;
        Some(SegmentLocation {
            id: ShardId(block::u32_at(&block.lines[IDS..], place)?),
            place: (number * BLOCK_SHARDS + place) as u32,
            line: block.copies as u32,
            from: span.from,
            copies: span.len,
        })
    }

    /// Returns the last block before `number` that does not start after the key. Called only for keys whose mark equals
    /// the mark of the next block.
    #[cold]
    fn before(&self, number: usize, split: (u64, u64)) -> usize {
        let (mut first, mut after) = (0, number);
        while after - first > 1 {
            let middle = first.midpoint(after);
            match self.block(middle) {
                Some(block) if block.start(0) <= split => first = middle,
                _ => after = middle,
            }
        }
        first
    }

    /// Returns the holder index of the `i`-th copy of a located shard.
    #[inline]
    pub(super) fn copy(&self, line: usize, i: usize) -> Option<u32> {
        self.shape.copy(self.lines().get(line..)?, i)
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        (*self.words).as_ref().as_chunks().0
    }

    fn block_count(&self) -> usize {
        (self.len as usize).div_ceil(BLOCK_SHARDS)
    }

    /// Number of shards in a block.
    #[inline]
    fn shards_in_block(&self, number: usize) -> usize {
        (self.len as usize - number * BLOCK_SHARDS).min(BLOCK_SHARDS)
    }

    /// The first line of a block.
    #[inline]
    fn line_of(&self, lines: &[Line], number: usize) -> Option<usize> {
        let from = match self.shape.stride() {
            Some(stride) => number * stride,
            None => block::u32_at(lines.get(self.offsets as usize..)?, number)? as usize,
        };
        Some(self.blocks as usize + from)
    }

    #[inline]
    fn block(&self, number: usize) -> Option<Block<'_>> {
        let lines = self.lines();
        let line = self.line_of(lines, number)?;
        let copies = line + self.shape.header_lines();
        (line + IDS..=copies).for_each(|line| prefetch(lines, line));
        let rests = match self.scale.has_rest() {
            true => Some(lines.get(self.rests as usize + number * STARTS..)?.first_chunk()?),
            false => None,
        };
        let lines = lines.get(line..copies)?;
        Some(Block { lines, starts: lines.first_chunk()?, rests, copies })
    }
}

/// A block, read in place.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// The lines before the copies, complete for the layout of the block.
    lines: &'a [Line],
    starts: &'a [Line; STARTS],
    rests: Option<&'a [Line; STARTS]>,
    /// The first line of the copies, relative to the segment.
    copies: usize,
}

impl Block<'_> {
    /// Returns the word and the rest of the start at `place`.
    #[inline]
    fn start(&self, place: usize) -> (u64, u64) {
        (block::start(self.starts, place), self.rests.map_or(0, |rests| block::start(rests, place)))
    }

    /// Returns how many starts are at or below the key.
    #[inline]
    fn count(&self, split: (u64, u64)) -> usize {
        block::count_up_to(self.starts, self.rests, split)
    }
}

/// Prefetches a line while the position in it is still being computed, so that a lookup waits for memory once instead
/// of twice. Implemented as a plain read, since the prefetch instruction would require `unsafe`.
#[inline]
fn prefetch(lines: &[Line], at: usize) {
    if let Some(line) = lines.get(at) {
        black_box(line[0]);
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("range", &self.range).field("len", &self.len).finish_non_exhaustive()
    }
}
