/// How many children a node has, and shards a block.
pub(super) const FAN_OUT: usize = 16;

/// One cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [u64; 8]);

impl Line {
    /// Words that no key reaches, but for the greatest key of all.
    pub(super) const FULL: Self = Self([u64::MAX; 8]);
}

/// A static tree over the first starts of blocks; nodes are two lines, by level from the root down.
#[derive(Debug, Default)]
pub(super) struct Tree {
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// How many starts it holds.
    len: usize,
    words: Box<[Line]>,
    /// Parallel to `words`, or empty where the scale cuts nothing off.
    rests: Box<[Line]>,
}

impl Tree {
    /// Builds the tree over ascending `(word, rest)`.
    pub(super) fn new(firsts: &[(u64, u64)], has_rest: bool) -> Self {
        let mut levels = Vec::new();
        let mut starts = firsts.to_vec();
        while starts.len() > 1 {
            levels.push(Level {
                len: starts.len(),
                words: lines(starts.iter().map(|start| start.0)),
                rests: if has_rest { lines(starts.iter().map(|start| start.1)) } else { Box::default() },
            });
            starts = starts.into_iter().step_by(FAN_OUT).collect();
        }
        levels.reverse();
        Self { levels }
    }

    /// The last block that starts at or before the key; the first when none does.
    #[inline]
    pub(super) fn find(&self, word: u64, rest: u64) -> usize {
        let mut node = 0;
        for level in &self.levels {
            let lines = node * 2..node * 2 + 2;
            let rests = (!level.rests.is_empty()).then(|| &level.rests[lines.clone()]);
            let within = count(&level.words[lines], rests, word, rest);
            node = (node * FAN_OUT + within.saturating_sub(1)).min(level.len - 1);
        }
        node
    }

    pub(super) fn bytes(&self) -> usize {
        self.levels.iter().map(|level| size_of_val(&*level.words) + size_of_val(&*level.rests)).sum()
    }
}

/// Packs words into whole nodes.
pub(super) fn lines(words: impl Iterator<Item = u64>) -> Box<[Line]> {
    let mut lines = Vec::new();
    for (i, word) in words.enumerate() {
        if i % FAN_OUT == 0 {
            lines.extend([Line::FULL; 2]);
        }
        lines[i / 8].0[i % 8] = word;
    }
    lines.into_boxed_slice()
}

/// How many of a node's starts lie at or before the key. Counts without branching: where the key falls is not predictable.
#[inline]
pub(super) fn count(words: &[Line], rests: Option<&[Line]>, word: u64, rest: u64) -> usize {
    let (low, high) = (&words[0].0, &words[1].0);
    let mut n = 0;
    for i in 0..8 {
        n += usize::from(low[i] <= word) + usize::from(high[i] <= word);
    }
    without_later(n, |i| words[i / 8].0[i % 8], rests, (word, rest))
}

/// Of `n` starts whose words do not lie after the key's, those that do not lie after it with their rests either.
#[inline]
pub(super) fn without_later(
    mut n: usize,
    start: impl Fn(usize) -> u64,
    rests: Option<&[Line]>,
    (word, rest): (u64, u64),
) -> usize {
    if let Some(rests) = rests {
        while n > 0 && start(n - 1) == word && rests[(n - 1) / 8].0[(n - 1) % 8] > rest {
            n -= 1;
        }
    }
    n
}
