//! A static tree over the blocks of a segment, which finds the block of a key by the leading bits of where blocks start.
//!
//! A mark has 31 bits, so that 80 of them are five lines of the cache, two levels lead to any of six thousand blocks, and
//! the marks of millions of shards stay in a nearer cache than the blocks do. Blocks whose marks are the same are told apart by
//! their starts: the tree then leads to the last of them, or to one before.

/// How many children a node has.
const FAN_OUT: usize = 80;
/// Lines of a node: two marks a word.
const NODE: usize = 5;
/// Bits of a mark. The 32nd is for comparing two of them at a time.
const BITS: u32 = 31;
/// The greatest mark, and what stands where there is none.
const MOST: u32 = (1 << BITS) - 1;

/// One cache line.
pub(super) type Line = [u64; 8];

/// A level of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// How many marks it has.
    len: u32,
    /// The line at which it begins.
    at: u32,
}

/// By how much words are shifted to be marks, where this is the greatest.
pub(super) fn shift(greatest: u64) -> u32 {
    (u64::BITS - greatest.leading_zeros()).saturating_sub(BITS)
}

/// The mark of a word; words above the greatest have the greatest mark.
#[inline]
pub(super) fn mark(word: u64, shift: u32) -> u32 {
    (word >> shift).min(u64::from(MOST)) as u32
}

/// Every level over so many blocks, from the root down, if the tree begins at `line`; and the line at which it ends. One block
/// needs no tree.
pub(super) fn levels(blocks: usize, line: u64) -> (Vec<Level>, u64) {
    let mut lens = Vec::new();
    let mut len = blocks;
    while len > 1 {
        lens.push(len);
        len = len.div_ceil(FAN_OUT);
    }
    let mut at = line;
    let level = |&len: &usize| {
        // The caller sees to it that a segment has no more lines than 32 bits count.
        let level = Level { len: len as u32, at: at as u32 };
        at += (NODE * len.div_ceil(FAN_OUT)) as u64;
        level
    };
    let levels = lens.iter().rev().map(level).collect();
    (levels, at)
}

/// Appends the nodes of every level over ascending marks, from the root down.
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
            into.extend([[pair(MOST, MOST); 8]; NODE]);
            for (i, two) in node.chunks(2).enumerate() {
                into[first + i / 8][i % 8] = pair(two[0], two.get(1).copied().unwrap_or(MOST));
            }
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The last block whose mark is not above this one. `None` where a level lies outside `lines`.
#[inline]
pub(super) fn find(levels: &[Level], lines: &[Line], mark: u32) -> Option<usize> {
    let mut node = 0;
    for level in levels {
        let marks: &[Line; NODE] = lines.get(level.at as usize + NODE * node..)?.first_chunk()?;
        node = (FAN_OUT * node + not_above(marks, mark).saturating_sub(1)).min(level.len as usize - 1);
    }
    Some(node)
}

/// How many marks of a node are not above this one. Counts without branching, since where a key falls is not predictable, and
/// two at a time: the 32nd bit of each half stays where the subtraction does not borrow it.
#[inline]
fn not_above(marks: &[Line; NODE], mark: u32) -> usize {
    const TOPS: u64 = 1 << 63 | 1 << 31;
    let both = pair(mark, mark) | TOPS;
    let sums: u64 = marks.as_flattened().iter().map(|two| (both.wrapping_sub(*two) & TOPS) >> 31).sum();
    (sums as u32 + (sums >> 32) as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_that_does_not_begin_after_is_found_at_every_size() {
        for n in [1, 2, 79, 80, 81, 6399, 6400, 6401, 7000] {
            // Every third mark stands twice.
            let marks: Vec<u32> = (0..n).map(|i| 10 * (i - u32::from(i % 3 == 2))).collect();
            let mut lines = vec![[0; 8]; 2];
            write(marks.clone(), &mut lines);
            let (levels, end) = levels(n as usize, 2);
            assert_eq!(end, lines.len() as u64);
            let tried = marks.iter().flat_map(|mark| [mark.saturating_sub(1), *mark, mark + 1]);
            for mark in tried.chain([MOST]) {
                let expected = marks.partition_point(|other| *other <= mark).saturating_sub(1);
                assert_eq!(find(&levels, &lines, mark), Some(expected), "mark {mark} of {n}");
            }
        }
    }

    #[test]
    fn marks_keep_the_order_of_words_whatever_their_size() {
        for greatest in [0, 1, 1000, 1 << 31, 1 << 40, u64::MAX] {
            let shift = shift(greatest);
            assert!(mark(greatest, shift) > MOST / 2 || shift == 0);
            assert!(mark(greatest / 2, shift) <= mark(greatest, shift));
            assert_eq!(mark(u64::MAX, 0), MOST);
        }
    }
}
