//! Sets of backends, as bit sets over their positions in the fleet.

const BITS: usize = u64::BITS as usize;

/// A set of backends, one bit for each backend of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackendSet(Box<[u64]>);

impl BackendSet {
    /// The empty set for a fleet of `backends` backends.
    pub(crate) fn empty(backends: usize) -> Self {
        Self(vec![0; backends.div_ceil(BITS)].into())
    }

    pub(crate) fn insert(&mut self, backend: usize) {
        self.0[backend / BITS] |= 1 << (backend % BITS);
    }

    pub(crate) fn remove(&mut self, backend: usize) {
        self.0[backend / BITS] &= !(1 << (backend % BITS));
    }

    /// The set plus `backend`.
    pub(crate) fn with(&self, backend: usize) -> Self {
        let mut set = self.clone();
        set.insert(backend);
        set
    }

    /// The set without `backend`.
    pub(crate) fn without(&self, backend: usize) -> Self {
        let mut set = self.clone();
        set.remove(backend);
        set
    }

    pub(crate) fn contains(&self, backend: usize) -> bool {
        self.0[backend / BITS] & 1 << (backend % BITS) != 0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether this set is a subset of `other`.
    pub(crate) fn lies_within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(own, others)| own & !others == 0)
    }

    /// Positions of the backends, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(at * BITS + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_set_holds_backends_beyond_first_word() {
        let mut set = BackendSet::empty(130);
        assert!(set.is_empty() && set.lies_within(&set));
        for backend in [129, 0, 64, 63] {
            set.insert(backend);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 129]);
        assert_eq!((set.len(), set.contains(64), set.contains(65)), (4, true, false));
        assert!(set.without(64).lies_within(&set) && !set.lies_within(&set.without(64)));
        assert!(!set.with(1).lies_within(&set));
    }
}
