//! Copies of records that updates keep current.
//!
//! Routers, health checkers and servers of sharded services follow different prefixes and keep different parts of their
//! records; the order in which an update takes effect, and the treatment of unknown keys, is the same for all of them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey};

use crate::{Snapshot, Update};

/// A record as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedRecord<'a> {
    /// The text of its key.
    pub text: &'a Arc<str>,
    /// Its value.
    pub value: &'a Bytes,
    /// How old the value may be: the age of its snapshot; zero in a change, which is sent as it is made.
    pub age: Duration,
}

/// A copy of the records below some prefixes.
pub trait Mirror {
    /// Removes the records below the snapshot's prefix that it does not hold. The others stay until they are put, so
    /// that a record remains in use where its replacement is invalid.
    fn retain(&mut self, snapshot: &Snapshot);

    /// Adds or replaces a record.
    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>);

    /// Removes a record.
    fn delete(&mut self, text: &str, key: &RecordKey);

    /// The copy of this prefix is current: its snapshot is complete, or the subscription resumed.
    fn mark_current(&mut self, prefix: &Prefix);

    /// Applies an update: subscriptions that resumed, snapshots, then changes.
    fn apply(&mut self, update: &Update) {
        for resumed in &update.resumed {
            self.mark_current(&resumed.prefix);
        }
        for snapshot in &update.snapshots {
            self.apply_snapshot(snapshot);
        }
        for (text, entry) in &update.puts {
            put(self, ArrivedRecord { text, value: &entry.value, age: Duration::ZERO });
        }
        for text in &update.deletes {
            if let Ok(key) = RecordKey::parse(text) {
                self.delete(text, &key);
            }
        }
    }

    /// Replaces the records of a prefix.
    fn apply_snapshot(&mut self, snapshot: &Snapshot) {
        self.retain(snapshot);
        for (text, entry) in &snapshot.entries {
            put(self, ArrivedRecord { text, value: &entry.value, age: snapshot.age });
        }
        self.mark_current(&snapshot.prefix);
    }
}

fn put<M: Mirror + ?Sized>(mirror: &mut M, record: ArrivedRecord<'_>) {
    match RecordKey::parse(record.text) {
        Ok(key) => mirror.put(key, record),
        Err(_) => tracing::debug!(key = %record.text, "skipped a key of a newer version"),
    }
}
