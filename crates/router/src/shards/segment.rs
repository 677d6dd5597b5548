//! A segment: the shards of an interval of keys as one array of words, which is read where it lies, be that memory of this
//! process or a mapping that another one made. It holds no address, and every offset follows from three counts, so that
//! there is little that a damaged one could say.
//!
//! | lines of 64 bytes | what |
//! |---|---|
//! | 2 | header: magic, format version and shift, checksum of all else, store id, first and last key, number of shards, lines of blocks, how far holders are numbered, shift of marks, one more than the copies of each shard or 0 |
//! | 5 a node | the tree over the blocks, by level from the root down |
//! | 1 for 16 blocks | the line at which each block starts, counted from the first, unless all have as many |
//! | … | blocks |
//! | 2 a block | rests, where the scale cuts any off |
//!
//! Words are in the byte order of the machine, which no segment leaves.

use std::{fmt, hint::black_box, sync::Arc};

use fairmesh_model::{KeyRange, ShardId, ShardKey, StoreId, arith::mix64};

use super::{
    Scale, Unfit,
    block::{self, IDS, MOST_COPIES, NO_START, SHARDS, STARTS, Shape},
    tree::{self, Level, Line},
};

const MAGIC: u64 = u64::from_le_bytes(*b"fairshrd");
const VERSION: u64 = 2;
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
    shape: Shape,
    levels: Box<[Level]>,
    /// By how much words are shifted to be marks of the tree.
    marks: u32,
    /// The first line of each.
    offsets: u32,
    blocks: u32,
    rests: u32,
    /// The first line that is not of it. Memory that is handed over may have more.
    end: u32,
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
        self.copies.extend(copies.into_iter().take(MOST_COPIES));
        self.ends.push(self.copies.len() as u32);
    }

    fn copies(&self, i: usize) -> &[u32] {
        let from = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.copies[from..self.ends[i] as usize]
    }

    /// How many copies every shard has; `None` where that differs.
    fn each(&self) -> Option<u32> {
        let first = self.copies(0).len();
        (1..self.shards.len()).all(|i| self.copies(i).len() == first).then_some(first as u32)
    }

    /// The words of the segment that speaks for `range`, in which all shards start.
    ///
    /// # Panics
    /// When there is no shard.
    pub fn encode(&self, store: StoreId, range: KeyRange) -> Vec<u64> {
        let scale = Scale::new(range.first, self.shards[self.shards.len() - 1].1);
        let holders = self.copies.iter().max().map_or(0, |last| last.saturating_add(1));
        let shape = Shape::new(self.each(), holders);
        let starts: Vec<(u64, u64)> = self.shards.iter().map(|(_, start)| scale.split(*start)).collect();
        let mark_shift = tree::shift(starts[starts.len() - 1].0);
        let (mut blocks, mut rests, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        for first in (0..self.shards.len()).step_by(SHARDS) {
            let block = first..(first + SHARDS).min(self.shards.len());
            offsets.push(blocks.len() as u32);
            shape
                .write(block.clone().map(|i| (starts[i].0, self.shards[i].0.0, self.copies(i))), &mut blocks);
            if scale.has_rest() {
                let mut lines = [[NO_START; 8]; STARTS];
                block.zip(lines.as_flattened_mut()).for_each(|(i, rest)| *rest = starts[i].1);
                rests.extend(lines);
            }
        }
        let mut lines = vec![[0; 8]; HEADER];
        tree::write(
            starts.iter().step_by(SHARDS).map(|start| tree::mark(start.0, mark_shift)).collect(),
            &mut lines,
        );
        if shape.each.is_none() {
            lines.extend(offset_lines(&offsets));
        }
        let block_lines = blocks.len() as u64;
        lines.append(&mut blocks);
        lines.append(&mut rests);
        let (store, first, last) = (halves(store.0), halves(range.first.0), halves(range.last.0));
        let version = VERSION << 32 | u64::from(scale.shift);
        lines[0] = [MAGIC, version, 0, store[0], store[1], first[0], first[1], last[0]];
        let (len, holders) = (self.shards.len() as u64, u64::from(holders));
        let each = shape.each.map_or(0, |each| u64::from(each) + 1);
        lines[1] = [last[1], len, block_lines, holders, u64::from(mark_shift), each, 0, 0];
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
        let [len, block_lines, holders, marks, each] =
            [9, 10, 11, 12, 13].map(|at| u32::try_from(header[at]).unwrap_or(u32::MAX));
        let sensible = marks < u64::BITS && each as usize <= MOST_COPIES + 1 && holders < u32::MAX;
        if first > last || scale.shift > 64 || len == 0 || !sensible {
            return Err(Unfit("its header makes no sense"));
        }
        let shape = Shape::new(each.checked_sub(1), holders);
        let count = (len as usize).div_ceil(SHARDS);
        if shape.stride().is_some_and(|stride| stride * count != block_lines as usize) {
            return Err(Unfit("its blocks are not as many lines as its header says"));
        }
        let (levels, offsets) = tree::levels(count, HEADER as u64);
        let blocks = offsets + if shape.each.is_some() { 0 } else { count.div_ceil(16) as u64 };
        let rests = blocks + u64::from(block_lines);
        let end = rests + if scale.has_rest() { (STARTS * count) as u64 } else { 0 };
        if end * 8 > all.len() as u64 || end > u64::from(u32::MAX) {
            return Err(Unfit("its size is not what its header says"));
        }
        let (store, range) = (StoreId(whole(header, 3)), KeyRange { first, last });
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

    fn check(&self) -> Result<(), Unfit> {
        let words = self.lines().get(..self.end as usize).unwrap_or_default().as_flattened();
        if words.get(CHECKED_FROM - 1) != Some(&checksum(words)) {
            return Err(Unfit("its checksum does not fit"));
        }
        let mut marks = Vec::new();
        let (mut before, mut line) = (None, self.blocks as usize);
        for number in 0..self.block_count() {
            if self.line_of(self.lines(), number) != Some(line) {
                return Err(Unfit("a block is not where the one before it ends"));
            }
            let block = self.block(number).ok_or(Unfit("a block lies outside"))?;
            let mut copies = 0;
            for place in 0..self.inside(number) {
                let start = block.start(place);
                if before.is_some_and(|before| before >= start) {
                    return Err(Unfit("its starts do not ascend"));
                }
                before = Some(start);
                if place == 0 {
                    marks.push(tree::mark(start.0, self.marks));
                }
                let span = self.shape.span(block.lines, place).ok_or(Unfit("a block lies outside"))?;
                if span.from != copies {
                    return Err(Unfit("copies are not where those before them end"));
                }
                copies += span.len;
            }
            self.check_copies(line + self.shape.head(), copies)?;
            let lines = self.shape.head() + self.shape.lines_of(copies as usize);
            line += self.shape.stride().unwrap_or(lines);
        }
        if line != self.rests as usize {
            return Err(Unfit("its blocks do not end where its header says"));
        }
        let greatest = before.map_or(0, |(word, _)| word);
        let mut tree = Vec::new();
        tree::write(marks, &mut tree);
        match self.lines().get(HEADER..self.offsets as usize) {
            Some(found) if *found == tree && self.marks == tree::shift(greatest) => Ok(()),
            _ => Err(Unfit("its tree does not lead to its blocks")),
        }
    }

    fn check_copies(&self, first: usize, count: u32) -> Result<(), Unfit> {
        let lines = self.lines().get(first..self.rests as usize).ok_or(Unfit("copies lie outside"))?;
        let known = |i: usize| self.shape.copy(lines, i).is_some_and(|copy| copy < self.holders);
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
        let shards = move |number: usize| {
            self.block(number).into_iter().flat_map(move |block| {
                (0..self.inside(number)).filter_map(move |place| {
                    let (word, rest) = block.start(place);
                    let span = self.shape.span(block.lines, place)?;
                    let copies = move |i| self.copy(block.copies, (span.from + i) as usize);
                    let id = ShardId(block::half(&block.lines[IDS..], place)?);
                    Some((id, self.scale.join(word, rest), (0..span.len).filter_map(copies)))
                })
            })
        };
        (0..self.block_count()).flat_map(shards)
    }

    /// The first key of the shard at this place, where there is one.
    pub(super) fn start(&self, place: u32) -> Option<ShardKey> {
        if place >= self.len {
            return None;
        }
        let (word, rest) = self.block(place as usize / SHARDS)?.start(place as usize % SHARDS);
        Some(self.scale.join(word, rest))
    }

    /// Its size, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val((*self.words).as_ref())
    }

    /// The shard that holds a key of its range.
    #[inline]
    pub(super) fn locate(&self, key: ShardKey) -> Option<Found> {
        let split = self.scale.split(key);
        let mut number = tree::find(&self.levels, self.lines(), tree::mark(split.0, self.marks))?;
        let mut block = self.block(number)?;
        let mut count = block.count(split);
        if count == 0 && number > 0 {
            number = self.before(number, split);
            block = self.block(number)?;
            count = block.count(split);
        }
        let place = count.min(self.inside(number)).saturating_sub(1);
        let span = self.shape.span(block.lines, place)?;
        Some(Found {
            id: ShardId(block::half(&block.lines[IDS..], place)?),
            place: (number * SHARDS + place) as u32,
            line: block.copies as u32,
            from: span.from,
            copies: span.len,
        })
    }

    /// The last block before `number` that does not start after the key. Only keys that agree with the start of the next block in
    /// all that the tree knows of come here.
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

    /// The `i`-th copy of a shard that was found, as the number of its holder.
    #[inline]
    pub(super) fn copy(&self, line: usize, i: usize) -> Option<u32> {
        self.shape.copy(self.lines().get(line..)?, i)
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        (*self.words).as_ref().as_chunks().0
    }

    fn block_count(&self) -> usize {
        (self.len as usize).div_ceil(SHARDS)
    }

    /// How many shards a block has.
    #[inline]
    fn inside(&self, number: usize) -> usize {
        (self.len as usize - number * SHARDS).min(SHARDS)
    }

    /// The line at which a block starts.
    #[inline]
    fn line_of(&self, lines: &[Line], number: usize) -> Option<usize> {
        let from = match self.shape.stride() {
            Some(stride) => number * stride,
            None => block::half(lines.get(self.offsets as usize..)?, number)? as usize,
        };
        Some(self.blocks as usize + from)
    }

    #[inline]
    fn block(&self, number: usize) -> Option<Block<'_>> {
        let lines = self.lines();
        let line = self.line_of(lines, number)?;
        let copies = line + self.shape.head();
        (line + IDS..=copies).for_each(|line| touch(lines, line));
        let rests = match self.scale.has_rest() {
            true => Some(lines.get(self.rests as usize + number * STARTS..)?.first_chunk()?),
            false => None,
        };
        let lines = lines.get(line..copies)?;
        Some(Block { lines, starts: lines.first_chunk()?, rests, copies })
    }
}

/// A block where it lies.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// The lines before its copies, of which there are all that its shape has.
    lines: &'a [Line],
    starts: &'a [Line; STARTS],
    rests: Option<&'a [Line; STARTS]>,
    /// The first line of its copies, counted from that of the segment.
    copies: usize,
}

impl Block<'_> {
    /// The word and the rest of the start at `place`.
    #[inline]
    fn start(&self, place: usize) -> (u64, u64) {
        (block::start(self.starts, place), self.rests.map_or(0, |rests| block::start(rests, place)))
    }

    /// How many of its starts lie at or before the key.
    #[inline]
    fn count(&self, split: (u64, u64)) -> usize {
        block::count(self.starts, self.rests, split)
    }
}

/// Has a line fetched that will be wanted, while what says where in it is still on its way: a look-up then waits for memory
/// once and not twice. By a plain read: the instruction for it would need `unsafe` here.
#[inline]
fn touch(lines: &[Line], at: usize) {
    if let Some(line) = lines.get(at) {
        black_box(line[0]);
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("range", &self.range).field("len", &self.len).finish_non_exhaustive()
    }
}
