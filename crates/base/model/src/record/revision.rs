use std::{collections::BTreeMap, fmt};

/// Identity of a store, drawn at random when the store is created. Revision numbers of two stores cannot be compared.
/// A reader that meets another id discards its copy and takes a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(pub u128);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A point in the history of a partition. Comparable only with revisions of the same store and partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    /// The store.
    pub store: StoreId,
    /// The partition within the store; 0 if there is only one.
    pub partition: u32,
    /// Number of the last batch committed in this partition. Numbers increase and may have gaps; 0 is the empty
    /// store.
    pub number: u64,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            0 => write!(f, "{}", self.number),
            partition => write!(f, "{partition}:{}", self.number),
        }
    }
}

/// The position of a watcher, with one number per partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The store.
    pub store: StoreId,
    /// Number of the last applied batch, by partition.
    pub numbers: BTreeMap<u32, u64>,
}

impl Cursor {
    /// The cursor of a watcher of a single partition that has applied exactly `revision`.
    pub fn at(revision: Revision) -> Self {
        Self { store: revision.store, numbers: BTreeMap::from([(revision.partition, revision.number)]) }
    }

    /// Number of the last applied batch in `partition`; 0 if none.
    pub fn number(&self, partition: u32) -> u64 {
        self.numbers.get(&partition).copied().unwrap_or(0)
    }
}
