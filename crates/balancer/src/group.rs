use fairmesh_model::arith::Generator;

/// A list of endpoints this long lies beside the rest of the snapshot: a pick reads it without another cache miss.
const NEAR: usize = 24;

/// Endpoints among which to pick, as compiled into a snapshot.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Members {
    len: u32,
    /// The weight of each where all are equal, else 0.
    each: u32,
    near: [u32; NEAR],
    /// All indices, where there are more than fit in `near`.
    far: Box<[u32]>,
    /// Running totals of the weights; empty where all are equal.
    ends: Box<[u64]>,
}

impl Members {
    /// Endpoints by index and weight, in an order that callers keep; a weight of 0 counts as 1.
    pub fn new(members: &[(u32, u32)]) -> Self {
        let first = members.first().map_or(1, |&(_, weight)| weight.max(1));
        let equal = members.iter().all(|&(_, weight)| weight.max(1) == first);
        let mut near = [0; NEAR];
        let mut far = Box::default();
        match near.get_mut(..members.len()) {
            Some(near) => near.iter_mut().zip(members).for_each(|(near, member)| *near = member.0),
            None => far = members.iter().map(|&(index, _)| index).collect(),
        }
        let mut total = 0;
        let ends = members.iter().filter(|_| !equal).map(|&(_, weight)| {
            total += u64::from(weight.max(1));
            total
        });
        let ends = ends.collect();
        Self { len: members.len() as u32, each: if equal { first } else { 0 }, near, far, ends }
    }

    /// The same, to pick from.
    #[inline]
    pub fn group(&self) -> Group<'_> {
        let indices = self.near.get(..self.len as usize).unwrap_or(&self.far);
        Group { indices, ends: &self.ends, each: self.each }
    }
}
/// A few endpoints, found while a call is decided: no allocation.
#[derive(Clone, Debug)]
pub struct Few {
    indices: [u32; Self::MOST],
    ends: [u64; Self::MOST],
    len: usize,
}

impl Few {
    /// How many fit.
    pub const MOST: usize = 32;

    /// None yet.
    #[inline]
    pub fn new() -> Self {
        Self { indices: [0; Self::MOST], ends: [0; Self::MOST], len: 0 }
    }

    /// Forgets all.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an endpoint unless it is full; a weight of 0 counts as 1.
    #[inline]
    pub fn push(&mut self, index: u32, weight: u32) {
        if self.len < Self::MOST {
            let before = if self.len == 0 { 0 } else { self.ends[self.len - 1] };
            self.indices[self.len] = index;
            self.ends[self.len] = before + u64::from(weight.max(1));
            self.len += 1;
        }
    }

    /// The same, to pick from.
    #[inline]
    pub fn group(&self) -> Group<'_> {
        Group { indices: &self.indices[..self.len], ends: &self.ends[..self.len], each: 0 }
    }
}

impl Default for Few {
    fn default() -> Self {
        Self::new()
    }
}

/// Endpoints among which to pick.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    indices: &'a [u32],
    ends: &'a [u64],
    each: u32,
}

impl<'a> Group<'a> {
    /// The endpoints' indices.
    #[inline]
    pub fn indices(&self) -> &'a [u32] {
        self.indices
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The weight of the endpoint at `position`.
    #[inline]
    pub fn weight(&self, position: usize) -> u32 {
        if self.each != 0 {
            return self.each;
        }
        let start = if position == 0 { 0 } else { self.ends[position - 1] };
        // The difference is what `new` or `push` added: a u32.
        (self.ends[position] - start) as u32
    }

    /// Draws a position by weight: the one whose stretch of the running totals holds `below(total)`.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "else the generator goes through memory between two draws")]
    pub(crate) fn sample(&self, random: &mut Generator) -> usize {
        match self.ends.last() {
            // floor(floor(t * n * w) / w) is floor(t * n): equal weights need no totals to draw the very same position.
            None => random.below(self.len() as u64) as usize,
            Some(&total) => self.holder(random.below(total)),
        }
    }

    /// Draws by weight a position other than `taken`: `below(total - weight)`, the stretch of `taken` cut out.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `sample`")]
    pub(crate) fn sample_other(&self, taken: usize, random: &mut Generator) -> usize {
        match self.ends.last() {
            None => {
                let position = random.below(self.len() as u64 - 1) as usize;
                position + usize::from(position >= taken)
            }
            Some(&total) => {
                let weight = u64::from(self.weight(taken));
                let point = random.below(total - weight);
                let start = self.ends[taken] - weight;
                self.holder(if point >= start { point + weight } else { point })
            }
        }
    }

    /// The position whose turn it is: `turn mod n` where all weights are equal, else the one that holds the fraction
    /// `turn * step` of 2^64 of the running totals.
    #[inline]
    pub(crate) fn in_turn(&self, turn: u32, step: u64) -> usize {
        match self.ends.last() {
            None => turn as usize % self.len(),
            Some(&total) => {
                let fraction = u64::from(turn).wrapping_mul(step);
                self.holder(((u128::from(fraction) * u128::from(total)) >> 64) as u64)
            }
        }
    }

    #[inline]
    fn holder(&self, point: u64) -> usize {
        self.ends.partition_point(|&end| end <= point)
    }
}
