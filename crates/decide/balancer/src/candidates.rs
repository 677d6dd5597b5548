use fairmesh_model::arith::Generator;

/// Maximum number of indices that are stored inline in the snapshot, which saves a pick a cache miss.
const INLINE_INDICES: usize = 24;

/// The endpoints from which a pick chooses, as compiled into a snapshot.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct CandidateSet {
    len: u32,
    /// The weight of each endpoint if all are equal, otherwise 0.
    equal_weight: u32,
    inline: [u32; INLINE_INDICES],
    /// All indices, if there are too many for `inline`.
    heap: Box<[u32]>,
    /// Cumulative weights; empty if all weights are equal.
    cumulative_weights: Box<[u64]>,
}

impl CandidateSet {
    /// Creates a set from indices and weights, in stable order. A weight of 0 counts as 1.
    pub fn new(members: &[(u32, u32)]) -> Self {
        let first = members.first().map_or(1, |&(_, weight)| weight.max(1));
        let equal = members.iter().all(|&(_, weight)| weight.max(1) == first);
        let mut inline = [0; INLINE_INDICES];
        let mut heap = Box::default();
        match inline.get_mut(..members.len()) {
            Some(inline) => inline.iter_mut().zip(members).for_each(|(inline, member)| *inline = member.0),
            None => heap = members.iter().map(|&(index, _)| index).collect(),
        }
        let mut total = 0;
        let cumulative_weights = members.iter().filter(|_| !equal).map(|&(_, weight)| {
            total += u64::from(weight.max(1));
            total
        });
        let cumulative_weights = cumulative_weights.collect();
        Self {
            len: members.len() as u32,
            equal_weight: if equal { first } else { 0 },
            inline,
            heap,
            cumulative_weights,
        }
    }

    /// Returns a borrowed view to pick from.
    #[inline]
    pub fn as_candidates(&self) -> Candidates<'_> {
        let indices = self.inline.get(..self.len as usize).unwrap_or(&self.heap);
        Candidates { indices, cumulative_weights: &self.cumulative_weights, equal_weight: self.equal_weight }
    }
}
/// Endpoints collected during a decision, without allocation.
#[derive(Clone, Debug)]
pub struct InlineCandidates {
    indices: [u32; Self::CAPACITY],
    cumulative_weights: [u64; Self::CAPACITY],
    len: usize,
}

impl InlineCandidates {
    /// Maximum number of endpoints.
    pub const CAPACITY: usize = 32;

    /// Creates an empty set.
    #[inline]
    pub fn new() -> Self {
        Self { indices: [0; Self::CAPACITY], cumulative_weights: [0; Self::CAPACITY], len: 0 }
    }

    /// Removes all endpoints.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Number of endpoints.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the set is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an endpoint unless the set is full. A weight of 0 counts as 1.
    #[inline]
    pub fn push(&mut self, index: u32, weight: u32) {
        if self.len < Self::CAPACITY {
            let before = if self.len == 0 { 0 } else { self.cumulative_weights[self.len - 1] };
            self.indices[self.len] = index;
            self.cumulative_weights[self.len] = before + u64::from(weight.max(1));
            self.len += 1;
        }
    }

    /// Returns a borrowed view to pick from.
    #[inline]
    pub fn as_candidates(&self) -> Candidates<'_> {
        Candidates {
            indices: &self.indices[..self.len],
            cumulative_weights: &self.cumulative_weights[..self.len],
            equal_weight: 0,
        }
    }
}

impl Default for InlineCandidates {
    fn default() -> Self {
        Self::new()
    }
}

/// Borrowed endpoints to pick from.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    indices: &'a [u32],
    cumulative_weights: &'a [u64],
    equal_weight: u32,
}

impl<'a> Candidates<'a> {
    /// The indices of the endpoints.
    #[inline]
    pub fn indices(&self) -> &'a [u32] {
        self.indices
    }

    /// The weight of each endpoint if all are equal, otherwise 0.
    pub fn equal_weight(&self) -> u32 {
        self.equal_weight
    }

    /// Number of endpoints.
    #[inline]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are no endpoints.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The weight of the endpoint at `position`.
    #[inline]
    pub fn weight(&self, position: usize) -> u32 {
        if self.equal_weight != 0 {
            return self.equal_weight;
        }
        let start = if position == 0 { 0 } else { self.cumulative_weights[position - 1] };
        // The difference is a weight that `new` or `push` added, so it is a u32.
        (self.cumulative_weights[position] - start) as u32
    }

    /// Draws a position by weight: the position whose interval of the cumulative weights contains `below(total)`.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "else the generator goes through memory between two draws")]
    pub(crate) fn sample(&self, random: &mut Generator) -> usize {
        match self.cumulative_weights.last() {
            // floor(floor(t * n * w) / w) is floor(t * n): equal weights need no totals to draw the same position.
            None => random.below(self.len() as u64) as usize,
            Some(&total) => self.position_at(random.below(total)),
        }
    }

    /// Draws a position other than `excluded` by weight: `below(total - weight)`, with the interval of `excluded` cut
    /// out.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `sample`")]
    pub(crate) fn sample_excluding(&self, excluded: usize, random: &mut Generator) -> usize {
        match self.cumulative_weights.last() {
            None => {
                let position = random.below(self.len() as u64 - 1) as usize;
                position + usize::from(position >= excluded)
            }
            Some(&total) => {
                let weight = u64::from(self.weight(excluded));
                let point = random.below(total - weight);
                let start = self.cumulative_weights[excluded] - weight;
                self.position_at(if point >= start { point + weight } else { point })
            }
        }
    }

    /// The round-robin position: `counter mod n` if all weights are equal. Otherwise the position whose interval of
    /// the cumulative weights holds the fraction `counter * step` of 2^64.
    #[inline]
    pub(crate) fn round_robin_position(&self, counter: u32, step: u64) -> usize {
        match self.cumulative_weights.last() {
            None => counter as usize % self.len(),
            Some(&total) => {
                let fraction = u64::from(counter).wrapping_mul(step);
                self.position_at(((u128::from(fraction) * u128::from(total)) >> 64) as u64)
            }
        }
    }

    #[inline]
    fn position_at(&self, point: u64) -> usize {
        self.cumulative_weights.partition_point(|&end| end <= point)
    }
}
