//! A segment: the shards of an interval of keys as one array of words, which is read where it lies, be that memory of this
//! process or a mapping that another one made. It holds no address, and every offset follows from three counts, so that
//! there is little that a damaged one could say.
//!
//! | lines of 64 bytes | what |
//! |---|---|
//! | 2 | header: magic, format version and shift, checksum of all else, store id, first and last key, number of shards, lines of blocks, how far holders are numbered |
//! | 2 a node | the tree over the first starts of blocks, by level from the root down; after each level its rests, where the scale cuts any off |
//! | 1 for 16 blocks | the line at which each block starts, counted from the first |
//! | … | blocks |
//! | 2 a block | rests, where the scale cuts any off |
//!
//! Words are in the byte order of the machine, which no segment leaves.

use std::{fmt, sync::Arc};

use fairmesh_model::{KeyRange, ShardId, ShardKey, StoreId, arith::mix64};

use super::{
    Scale, Unfit,
    block::{self, COPIES, HEADER as BLOCK_HEADER},
    tree::{self, FAN_OUT, Level, Line},
};

const MAGIC: u64 = u64::from_le_bytes(*b"fairshrd");
const VERSION: u64 = 1;
/// Lines before the tree.
const HEADER: usize = 2;
/// Words before those that the checksum is of.
const CHECKED_FROM: usize = 3;

/// Where the words of a segment lie.
pub type Words = Arc<dyn AsRef<[u64]> + Send + Sync>;

/// The shards of an interval of keys, read where they lie. Cheap to clone.
#[derive(Clone)]
pub struct Segment {
    words: Words,
    store: StoreId,
    range: KeyRange,
    scale: Scale,
    len: u32,
    /// Holders are numbered below this.
    holders: u32,
    levels: Box<[Level]>,
    /// The first line of each.
    offsets: u32,
    blocks: u32,
    rests: u32,
}

/// Where a key lies in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: ShardId,
    pub(super) place: u32,
    /// The first line of its block's copies, and its own among those.
    pub(super) line: u32,
    pub(super) from: u32,
    pub(super) copies: u32,
}

/// The rows of a segment to be: shards by ascending start, each with the numbers of its holders.
#[derive(Debug, Default)]
pub struct Rows {
    shards: Vec<(ShardId, ShardKey)>,
    /// Where the copies of each shard end.
    ends: Vec<u32>,
    copies: Vec<u32>,
}

impl Rows {
    /// Appends a shard. Of more than 4,095 copies the first are used.
    pub fn push(&mut self, id: ShardId, start: ShardKey, copies: impl IntoIterator<Item = u32>) {
        self.shards.push((id, start));
        self.copies.extend(copies);
        self.ends.push(self.copies.len() as u32);
    }

    fn copies(&self, i: usize) -> &[u32] {
        let from = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.copies[from..self.ends[i] as usize]
    }

    /// The words of the segment that speaks for `range`, in which all shards start.
    pub fn encode(&self, store: StoreId, range: KeyRange) -> Vec<u64> {
        let scale = Scale::new(range.first, self.shards.last().map_or(range.first, |last| last.1));
        let count = self.shards.len().div_ceil(FAN_OUT);
        let (mut blocks, mut rests) = (Vec::new(), Vec::new());
        let (mut offsets, mut firsts) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for first in (0..self.shards.len()).step_by(FAN_OUT) {
            let block = first..(first + FAN_OUT).min(self.shards.len());
            let starts = || block.clone().map(|i| scale.split(self.shards[i].1));
            offsets.push(blocks.len() as u32);
            firsts.push(scale.split(self.shards[first].1));
            let shards = block.clone().zip(starts());
            block::write(shards.map(|(i, start)| (start.0, self.shards[i].0.0, self.copies(i))), &mut blocks);
            if scale.has_rest() {
                tree::write_nodes(starts().map(|start| start.1), &mut rests);
            }
        }
        let mut lines = vec![[0; 8]; HEADER];
        tree::write(&firsts, scale.has_rest(), &mut lines);
        lines.extend(offset_lines(&offsets));
        let block_lines = blocks.len() as u64;
        lines.append(&mut blocks);
        lines.append(&mut rests);
        let holders = self.copies.iter().max().map_or(0, |last| u64::from(*last) + 1);
        let (store, first, last) = (halves(store.0), halves(range.first.0), halves(range.last.0));
        lines[0] = [
            MAGIC,
            VERSION << 32 | u64::from(scale.shift),
            0,
            store[0],
            store[1],
            first[0],
            first[1],
            last[0],
        ];
        lines[1] = [last[1], self.shards.len() as u64, block_lines, holders, 0, 0, 0, 0];
        let mut words: Vec<u64> = lines.into_flattened();
        seal(&mut words);
        words
    }
}

/// Writes the checksum.
pub(super) fn seal(words: &mut [u64]) {
    words[CHECKED_FROM - 1] = checksum(words);
}

/// Sixteen offsets a line.
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

fn halves(wide: u128) -> [u64; 2] {
    [(wide >> 64) as u64, wide as u64]
}

fn whole(words: &[u64], at: usize) -> u128 {
    u128::from(words[at]) << 64 | u128::from(words[at + 1])
}

/// Against damage, not against malice: whoever hands a segment over could write a right one of a wrong map. Four lanes, since
/// one would wait for itself at each step.
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
    /// Reads a segment where it lies, once all of it has been checked: sizes, checksum, order of starts and of nodes, and
    /// that every copy lies within its block.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(words: Words) -> Result<Self, Unfit> {
        let segment = Self::open(words)?;
        segment.check()?;
        Ok(segment)
    }

    /// Reads the header, and checks that all that it speaks of is there.
    pub(super) fn open(words: Words) -> Result<Self, Unfit> {
        let all: &[u64] = (*words).as_ref();
        let header = all.get(..HEADER * 8).ok_or(Unfit("it is cut short"))?;
        if header[0] != MAGIC || header[1] >> 32 != VERSION {
            return Err(Unfit("it is of another format"));
        }
        let (first, last) = (ShardKey(whole(header, 5)), ShardKey(whole(header, 7)));
        let scale = Scale { origin: first.0, shift: header[1] as u32 };
        let [len, block_lines, holders] = [9, 10, 11].map(|at| u32::try_from(header[at]).unwrap_or(0));
        if first > last || scale.shift > 64 || len == 0 {
            return Err(Unfit("its header makes no sense"));
        }
        let rested = if scale.has_rest() { 2 } else { 1 };
        let mut at = HEADER as u64;
        let mut levels = Vec::new();
        let count = (len as usize).div_ceil(FAN_OUT);
        for len in tree::levels(count) {
            let nodes = 2 * len.div_ceil(FAN_OUT) as u64;
            let rests = if scale.has_rest() { at + nodes } else { 0 };
            levels.push((len, at, rests));
            at += nodes * rested;
        }
        let offsets = at;
        let blocks = offsets + count.div_ceil(16) as u64;
        let rests = blocks + u64::from(block_lines);
        let end = rests + 2 * count as u64 * (rested - 1);
        if end * 8 != all.len() as u64 || end > u64::from(u32::MAX) {
            return Err(Unfit("its size is not what its header says"));
        }
        let level = |(len, words, rests): (usize, u64, u64)| Level {
            len: len as u32,
            words: words as u32,
            rests: rests as u32,
        };
        let (store, range) = (StoreId(whole(header, 3)), KeyRange { first, last });
        let (offsets, blocks, rests) = (offsets as u32, blocks as u32, rests as u32);
        let levels = levels.into_iter().map(level).collect();
        Ok(Self { words, store, range, scale, len, holders, levels, offsets, blocks, rests })
    }

    fn check(&self) -> Result<(), Unfit> {
        let words: &[u64] = (*self.words).as_ref();
        if words[CHECKED_FROM - 1] != checksum(words) {
            return Err(Unfit("its checksum does not fit"));
        }
        let mut firsts = Vec::new();
        let (mut before, mut line) = (None, 0);
        for number in 0..self.block_count() {
            if self.offset(number) != Some(line) {
                return Err(Unfit("a block is not where the one before it ends"));
            }
            let (header, rests) = self.block(number).ok_or(Unfit("a block lies outside"))?;
            let mut copies = 0;
            for place in 0..self.inside(number) {
                let start =
                    (block::start(header, place), rests.map_or(0, |rests| rests[place / 8][place % 8]));
                if before.is_some_and(|before| before >= start) {
                    return Err(Unfit("its starts do not ascend"));
                }
                before = Some(start);
                if place == 0 {
                    firsts.push(start);
                }
                let entry = block::entry(header, place);
                if entry.from != copies {
                    return Err(Unfit("copies are not where those before them end"));
                }
                copies += entry.copies;
            }
            self.check_copies(line, copies)?;
            line += (BLOCK_HEADER + (copies as usize).div_ceil(COPIES)) as u32;
        }
        if self.blocks + line != self.rests {
            return Err(Unfit("its blocks do not end where its header says"));
        }
        let mut tree = Vec::new();
        tree::write(&firsts, self.scale.has_rest(), &mut tree);
        match self.lines().get(HEADER..self.offsets as usize) {
            Some(found) if *found == tree => Ok(()),
            _ => Err(Unfit("its tree does not lead to its blocks")),
        }
    }

    fn check_copies(&self, block: u32, count: u32) -> Result<(), Unfit> {
        let first = self.blocks as usize + block as usize + BLOCK_HEADER;
        let lines = self.lines().get(first..self.rests as usize).ok_or(Unfit("copies lie outside"))?;
        let known = |i: usize| block::copy(lines, i).is_some_and(|copy| copy < self.holders);
        if (0..count as usize).all(known) { Ok(()) } else { Err(Unfit("a copy has no holder")) }
    }

    /// The keys that it speaks for.
    pub fn range(&self) -> KeyRange {
        self.range
    }

    /// The store that the map is from.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// How many shards it has.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Never: a segment has at least one shard.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the greatest number of a holder.
    pub fn holders(&self) -> u32 {
        self.holders
    }

    /// Its shards by ascending start, each with the numbers of its holders.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, ShardKey, impl Iterator<Item = u32>)> {
        let block = move |number: usize| {
            let found = self.block(number).zip(self.line_of(self.lines(), number));
            found.into_iter().flat_map(move |((header, rests), line)| {
                (0..self.inside(number)).map(move |place| {
                    let rest = rests.map_or(0, |rests| rests[place / 8][place % 8]);
                    let start = self.scale.join(block::start(header, place), rest);
                    let entry = block::entry(header, place);
                    let copies = move |i| self.copy(line + BLOCK_HEADER as u32, (entry.from + i) as usize);
                    (ShardId(entry.id), start, (0..entry.copies).filter_map(copies))
                })
            })
        };
        (0..self.block_count()).flat_map(block)
    }

    /// The first key of the shard at this place, where there is one.
    pub(super) fn start(&self, place: u32) -> Option<ShardKey> {
        if place >= self.len {
            return None;
        }
        let (number, place) = (place as usize / FAN_OUT, place as usize % FAN_OUT);
        let (header, rests) = self.block(number)?;
        let rest = rests.map_or(0, |rests| rests[place / 8][place % 8]);
        Some(self.scale.join(block::start(header, place), rest))
    }

    /// Its size, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val((*self.words).as_ref())
    }

    /// The shard that holds a key of its range.
    #[inline]
    pub(super) fn locate(&self, key: ShardKey) -> Option<Found> {
        let lines = self.lines();
        let (word, rest) = self.scale.split(key);
        let number = tree::find(&self.levels, lines, word, rest)?;
        let (header, rests) = self.block_of(lines, number)?;
        let place = block::count(header, rests, word, rest).min(self.inside(number)).saturating_sub(1);
        let entry = block::entry(header, place);
        Some(Found {
            id: ShardId(entry.id),
            place: (number * FAN_OUT + place) as u32,
            line: self.line_of(lines, number)? + BLOCK_HEADER as u32,
            from: entry.from,
            copies: entry.copies,
        })
    }

    /// The `i`-th copy of a shard that was found, as the number of its holder.
    #[inline]
    pub(super) fn copy(&self, line: u32, i: usize) -> Option<u32> {
        block::copy(self.lines().get(line as usize..)?, i)
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        (*self.words).as_ref().as_chunks().0
    }

    fn block_count(&self) -> usize {
        (self.len as usize).div_ceil(FAN_OUT)
    }

    /// How many shards a block has.
    #[inline]
    fn inside(&self, number: usize) -> usize {
        (self.len as usize - number * FAN_OUT).min(FAN_OUT)
    }

    fn offset(&self, number: usize) -> Option<u32> {
        block::copy(self.lines().get(self.offsets as usize..)?, number)
    }

    fn block(&self, number: usize) -> Option<(&[Line; BLOCK_HEADER], Option<&[Line; 2]>)> {
        self.block_of(self.lines(), number)
    }

    /// The line at which a block starts.
    #[inline]
    fn line_of(&self, lines: &[Line], number: usize) -> Option<u32> {
        Some(self.blocks + block::copy(lines.get(self.offsets as usize..)?, number)?)
    }

    #[inline]
    fn block_of<'a>(
        &self,
        lines: &'a [Line],
        number: usize,
    ) -> Option<(&'a [Line; BLOCK_HEADER], Option<&'a [Line; 2]>)> {
        let header = lines.get(self.line_of(lines, number)? as usize..)?.first_chunk()?;
        let rests = match self.scale.has_rest() {
            true => Some(tree::pair(lines, self.rests as usize + number * 2)?),
            false => None,
        };
        Some((header, rests))
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("range", &self.range).field("len", &self.len).finish_non_exhaustive()
    }
}
