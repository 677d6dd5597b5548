/// How many children a node has, and shards a block.
pub(super) const FAN_OUT: usize = 16;

/// One cache line.
pub(super) type Line = [u64; 8];

/// Words that no key reaches, but for the greatest key of all.
pub(super) const FULL: Line = [u64::MAX; 8];

/// A level of a static tree over the first starts of blocks; nodes are two lines. Offsets are in lines of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// How many starts it holds.
    pub(super) len: u32,
    pub(super) words: u32,
    /// Parallel to `words`; 0, where the header is, if the scale cuts nothing off.
    pub(super) rests: u32,
}

/// How many starts each level over so many blocks holds, from the root down; one block needs no tree.
pub(super) fn levels(blocks: usize) -> Vec<usize> {
    let mut levels = Vec::new();
    let mut starts = blocks;
    while starts > 1 {
        levels.push(starts);
        starts = starts.div_ceil(FAN_OUT);
    }
    levels.reverse();
    levels
}

/// Appends the nodes of every level over ascending `(word, rest)`, from the root down.
pub(super) fn write(firsts: &[(u64, u64)], has_rest: bool, into: &mut Vec<Line>) {
    let mut levels: Vec<Vec<(u64, u64)>> = Vec::new();
    let mut starts = firsts.to_vec();
    while starts.len() > 1 {
        let above = starts.iter().copied().step_by(FAN_OUT).collect();
        levels.push(std::mem::replace(&mut starts, above));
    }
    for starts in levels.iter().rev() {
        write_nodes(starts.iter().map(|start| start.0), into);
        if has_rest {
            write_nodes(starts.iter().map(|start| start.1), into);
        }
    }
}

/// Appends words in whole nodes.
pub(super) fn write_nodes(words: impl Iterator<Item = u64>, into: &mut Vec<Line>) {
    let first = into.len();
    for (i, word) in words.enumerate() {
        if i % FAN_OUT == 0 {
            into.extend([FULL; 2]);
        }
        into[first + i / 8][i % 8] = word;
    }
}

/// The last block that starts at or before the key; the first when none does. `None` where a level lies outside `lines`.
#[inline]
pub(super) fn find(levels: &[Level], lines: &[Line], word: u64, rest: u64) -> Option<usize> {
    let mut node = 0;
    for level in levels {
        let rests = match level.rests {
            0 => None,
            rests => Some(pair(lines, rests as usize + node * 2)?),
        };
        let within = count(pair(lines, level.words as usize + node * 2)?, rests, word, rest);
        node = (node * FAN_OUT + within.saturating_sub(1)).min(level.len as usize - 1);
    }
    Some(node)
}

/// The two lines of a node.
#[inline]
pub(super) fn pair(lines: &[Line], at: usize) -> Option<&[Line; 2]> {
    lines.get(at..)?.first_chunk()
}

/// How many of a node's starts lie at or before the key. Counts without branching: where the key falls is not predictable.
#[inline]
fn count(words: &[Line; 2], rests: Option<&[Line; 2]>, word: u64, rest: u64) -> usize {
    let [low, high] = words;
    let mut n = 0;
    for i in 0..8 {
        n += usize::from(low[i] <= word) + usize::from(high[i] <= word);
    }
    without_later(n, |i| words[i / 8][i % 8], rests, (word, rest))
}

/// Of `n` starts whose words do not lie after the key's, those that do not lie after it with their rests either.
#[inline]
pub(super) fn without_later(
    mut n: usize,
    start: impl Fn(usize) -> u64,
    rests: Option<&[Line; 2]>,
    (word, rest): (u64, u64),
) -> usize {
    if let Some(rests) = rests {
        while n > 0 && start(n - 1) == word && rests[(n - 1) / 8][(n - 1) % 8] > rest {
            n -= 1;
        }
    }
    n
}
