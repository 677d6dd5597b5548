use std::{sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision};

use crate::Entry;

/// The changes from one revision of a reader to another. They are applied as one change: snapshots first, then the
/// rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The reader's revision after the update, for every subscribed prefix.
    pub revision: Revision,
    /// Subscriptions that resume from the reader's revision; their copies are current afterwards.
    pub resumed: Vec<Resumed>,
    /// Snapshots of whole prefixes.
    pub snapshots: Vec<Snapshot>,
    /// Changed keys with their latest values.
    pub puts: Vec<(Arc<str>, Entry)>,
    /// Deleted keys.
    pub deletes: Vec<Arc<str>>,
}

/// A subscription that resumes from the reader's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The subscribed prefix.
    pub prefix: Prefix,
    /// Maximum age of the copy; zero if the serving node is current with its own upstream.
    pub age: Duration,
}

/// Every entry below a prefix. A snapshot replaces all the reader's entries below that prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The subscribed prefix.
    pub prefix: Prefix,
    /// The entries, ordered by key.
    pub entries: Vec<(Arc<str>, Entry)>,
    /// Maximum age of the entries; zero if the serving node is current with its own upstream.
    pub age: Duration,
}

impl Snapshot {
    /// Whether the snapshot has an entry with this key.
    pub fn holds(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns the entry with this key.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        let position = self.entries.binary_search_by(|(held, _)| (**held).cmp(key)).ok()?;
        Some(&self.entries[position].1)
    }
}

impl Update {
    /// Creates an update without changes.
    pub fn empty(revision: Revision) -> Self {
        Self { revision, resumed: Vec::new(), snapshots: Vec::new(), puts: Vec::new(), deletes: Vec::new() }
    }
}
