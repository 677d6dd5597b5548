//! Copies of records that updates keep current.
//!
//! Routers, health checkers and servers of sharded services follow different prefixes and keep different parts of their
//! records; the order in which an update takes effect, and the treatment of unknown keys, is the same for all of them.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey};

use crate::{Snapshot, Update};

/// A copy of the records below some prefixes.
pub trait Mirror {
    /// Removes the records below the snapshot's prefix that it does not hold. The others stay until they are put, so
    /// that a record remains in use where its replacement is invalid.
    fn retain(&mut self, snapshot: &Snapshot);

    /// Adds or replaces a record. `text` is the key as it arrived.
    fn put(&mut self, text: &Arc<str>, key: RecordKey, value: &Bytes);

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
            put(self, text, &entry.value);
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
            put(self, text, &entry.value);
        }
        self.mark_current(&snapshot.prefix);
    }
}

fn put<M: Mirror + ?Sized>(mirror: &mut M, text: &Arc<str>, value: &Bytes) {
    match RecordKey::parse(text) {
        Ok(key) => mirror.put(text, key, value),
        Err(_) => tracing::debug!(key = %text, "skipped a key of a newer version"),
    }
}
