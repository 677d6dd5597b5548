use std::{sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision};

use crate::Entry;

/// The changes between two revisions of a reader, to be applied as one change: first the snapshots, then the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The revision of the reader afterwards, of every prefix that it is subscribed to.
    pub revision: Revision,
    /// Subscriptions that resume from the reader's revision, so that its copy of them is current afterwards.
    pub resumed: Vec<Resumed>,
    /// Snapshots of whole prefixes.
    pub snapshots: Vec<Snapshot>,
    /// Keys with their last values.
    pub puts: Vec<(Arc<str>, Entry)>,
    /// Deleted keys.
    pub deletes: Vec<Arc<str>>,
}

/// A subscription that resumes from the reader's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The subscribed prefix.
    pub prefix: Prefix,
    /// How old its copy may be: zero where the serving node is current with its own upstream.
    pub age: Duration,
}

/// Every entry below a prefix; it replaces the reader's entries there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The subscribed prefix.
    pub prefix: Prefix,
    /// The entries in the order of keys.
    pub entries: Vec<(Arc<str>, Entry)>,
    /// How old they may be: zero where the serving node is current with its own upstream.
    pub age: Duration,
}

impl Snapshot {
    /// Whether an entry has this key.
    pub fn holds(&self, key: &str) -> bool {
        self.entries.binary_search_by(|(held, _)| (**held).cmp(key)).is_ok()
    }
}

impl Update {
    /// An update without changes.
    pub fn empty(revision: Revision) -> Self {
        Self { revision, resumed: Vec::new(), snapshots: Vec::new(), puts: Vec::new(), deletes: Vec::new() }
    }
}
