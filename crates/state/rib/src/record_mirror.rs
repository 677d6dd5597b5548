//! Copies of records that updates keep current.
//!
//! Routers, health checkers and servers of sharded services follow different prefixes and need different parts of
//! their records. They share the order in which the parts of an update are applied, and the treatment of unknown
//! keys.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey};

use crate::{Snapshot, Update};

/// A record as received from the upstream.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedRecord<'a> {
    /// Text of the key.
    pub text: &'a Arc<str>,
    /// Encoded value.
    pub value: &'a Bytes,
    /// Maximum age of the value, which is the age of its snapshot. Zero for a change, which is sent immediately.
    pub age: Duration,
}

/// A copy of the records below some prefixes.
pub trait Mirror {
    /// Removes the records below the snapshot's prefix that the snapshot does not contain. Other records stay until
    /// they are replaced, so that a record remains in use if its replacement is invalid.
    fn retain(&mut self, snapshot: &Snapshot);

    /// Adds or replaces a record.
    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>);

    /// Removes a record.
    fn delete(&mut self, text: &str, key: &RecordKey);

    /// Marks a prefix as current, because its snapshot is complete or its subscription resumed.
    fn mark_current(&mut self, prefix: &Prefix);

    /// Applies an update: first resumed subscriptions, then snapshots, then changes.
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
