use std::{sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision};

use crate::Entry;

/// Everything that moves a reader from the revision where it stands to another, to be applied as one change: first the
/// snapshots, then the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Where the reader stands afterwards, with every prefix that it is subscribed to.
    pub revision: Revision,
    /// Subscriptions that carry on from where the reader stood, so that what it holds of them is current afterwards.
    pub resumed: Vec<Resumed>,
    /// Prefixes sent as a whole.
    pub snapshots: Vec<Snapshot>,
    /// Keys with their last values.
    pub puts: Vec<(Arc<str>, Entry)>,
    /// Keys that are gone.
    pub deletes: Vec<Arc<str>>,
}

/// A subscription that carries on from where the reader stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// What was asked for.
    pub prefix: Prefix,
    /// How old what is held of it may be: zero where the answering node is in touch with its own upstream.
    pub age: Duration,
}

/// All that there is below a prefix; it replaces what the reader had there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What was asked for.
    pub prefix: Prefix,
    /// The entries in the order of keys.
    pub entries: Vec<(Arc<str>, Entry)>,
    /// How old they may be: zero where the answering node is in touch with its own upstream.
    pub age: Duration,
}

impl Snapshot {
    /// Whether an entry has this key.
    pub fn holds(&self, key: &str) -> bool {
        self.entries.binary_search_by(|(held, _)| (**held).cmp(key)).is_ok()
    }
}

impl Update {
    /// An update that changes nothing.
    pub fn empty(revision: Revision) -> Self {
        Self { revision, resumed: Vec::new(), snapshots: Vec::new(), puts: Vec::new(), deletes: Vec::new() }
    }
}
