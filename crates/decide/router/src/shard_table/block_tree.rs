//! A static tree over the blocks of a segment, which finds the block of a key by the leading bits of the blocks'
//! starts.
//!
//! A mark has 31 bits. 80 marks therefore take five cache lines, two levels address six thousand blocks, and the marks
//! of millions of shards stay in a nearer cache than the blocks. Blocks with equal marks are distinguished by their
//! starts: the tree leads to the last of them, or to an earlier block.

/// Number of children per node.
const FAN_OUT: usize = 80;
/// Number of lines per node, with two marks per word.
const NODE_LINES: usize = 5;
/// Number of bits in a mark. The 32nd bit is used to compare two marks at a time.
const MARK_BITS: u32 = 31;
/// The greatest mark, also the placeholder for a missing one.
const MAX_MARK: u32 = (1 << MARK_BITS) - 1;

/// One cache line.
pub(super) type Line = [u64; 8];

/// A level of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// Number of marks in the level.
    len: u32,
    /// First line of the level.
    at: u32,
}

/// Returns the number of bits by which words up to `greatest` are shifted right to become marks.
pub(super) fn shift(greatest: u64) -> u32 {
    (u64::BITS - greatest.leading_zeros()).saturating_sub(MARK_BITS)
}

/// Returns the mark of a word. Words above the greatest have the greatest mark.
#[inline]
pub(super) fn mark(word: u64, shift: u32) -> u32 {
    (word >> shift).min(u64::from(MAX_MARK)) as u32
}

/// Returns the levels of a tree over this number of blocks, from the root down, if the tree begins at `line`; and the
/// line after the tree. A single block needs no tree.
pub(super) fn levels(blocks: usize, line: u64) -> (Vec<Level>, u64) {
    let mut lens = Vec::new();
    let mut len = blocks;
    while len > 1 {
        lens.push(len);
        len = len.div_ceil(FAN_OUT);
    }
    let mut at = line;
    let level = |&len: &usize| {
        // The caller ensures that a segment's line numbers fit into 32 bits.
        let level = Level { len: len as u32, at: at as u32 };
        at += (NODE_LINES * len.div_ceil(FAN_OUT)) as u64;
        level
    };
    let levels = lens.iter().rev().map(level).collect();
    (levels, at)
}

/// Appends the nodes of all levels over ascending marks, from the root down.
pub(super) fn write(marks: Vec<u32>, into: &mut Vec<Line>) {
    let mut levels: Vec<Vec<u32>> = Vec::new();
    let mut marks = marks;
    while marks.len() > 1 {
        let above = marks.iter().copied().step_by(FAN_OUT).collect();
        levels.push(std::mem::replace(&mut marks, above));
    }
    for marks in levels.iter().rev() {
        for node in marks.chunks(FAN_OUT) {
            let first = into.len();
            into.extend([[pair(MAX_MARK, MAX_MARK); 8]; NODE_LINES]);
            for (i, two) in node.chunks(2).enumerate() {
                into[first + i / 8][i % 8] = pair(two[0], two.get(1).copied().unwrap_or(MAX_MARK));
            }
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Returns the last block whose mark is at most `mark`. `None` if a level is outside `lines`.
#[inline]
pub(super) fn find(levels: &[Level], lines: &[Line], mark: u32) -> Option<usize> {
    let mut node = 0;
    for level in levels {
        let marks: &[Line; NODE_LINES] = lines.get(level.at as usize + NODE_LINES * node..)?.first_chunk()?;
        node = (FAN_OUT * node + not_above(marks, mark).saturating_sub(1)).min(level.len as usize - 1);
    }
    Some(node)
}

/// Returns how many of a node's marks are at most `mark`. Counts without branches, since the position of a key is
/// unpredictable, and two marks at a time: the 32nd bit of each half stays set if the subtraction does not borrow it.
#[inline]
fn not_above(marks: &[Line; NODE_LINES], mark: u32) -> usize {
    const TOP_BITS: u64 = 1 << 63 | 1 << 31;
    let both = pair(mark, mark) | TOP_BITS;
    let sums: u64 = marks.as_flattened().iter().map(|two| (both.wrapping_sub(*two) & TOP_BITS) >> 31).sum();
    (sums as u32 + (sums >> 32) as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_tree_finds_last_block_at_or_below_mark_at_every_size() {
        for n in [1, 2, 79, 80, 81, 6399, 6400, 6401, 7000] {
            // Every third mark is repeated.
            let marks: Vec<u32> = (0..n).map(|i| 10 * (i - u32::from(i % 3 == 2))).collect();
            let mut lines = vec![[0; 8]; 2];
            write(marks.clone(), &mut lines);
            let (levels, end) = levels(n as usize, 2);
            assert_eq!(end, lines.len() as u64);
            let tried = marks.iter().flat_map(|mark| [mark.saturating_sub(1), *mark, mark + 1]);
            for mark in tried.chain([MAX_MARK]) {
                let expected = marks.partition_point(|other| *other <= mark).saturating_sub(1);
                assert_eq!(find(&levels, &lines, mark), Some(expected), "mark {mark} of {n}");
            }
        }
    }

    #[test]
    fn block_tree_marks_preserve_order_of_words_of_any_size() {
        for greatest in [0, 1, 1000, 1 << 31, 1 << 40, u64::MAX] {
            let shift = shift(greatest);
            assert!(mark(greatest, shift) > MAX_MARK / 2 || shift == 0);
            assert!(mark(greatest / 2, shift) <= mark(greatest, shift));
            assert_eq!(mark(u64::MAX, 0), MAX_MARK);
        }
    }
}
