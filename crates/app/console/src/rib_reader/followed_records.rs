//! Records kept current by a watch.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{Prefix, RecordKey};
use fairmesh_wire::{
    handshake::Connection,
    v1::{
        Cursor, Entry, Revision, Snapshot, WatchRequest, WatchResponse, watch_request, watch_response::Kind,
    },
    watch::Watch,
};
use tokio::time::{Instant, timeout_at};

use super::{StoredRecord, failure_of, watch};
use crate::failure::Failure;

/// Changes within this time after the first are shown together.
const COALESCE: Duration = Duration::from_millis(50);

/// The records below some prefixes. Every change is acknowledged before it is returned, so that no drain waits for a
/// slow terminal.
#[derive(Debug)]
pub struct FollowedRecords {
    watch: Watch,
    entries: BTreeMap<String, Entry>,
    /// Received parts of an incomplete snapshot.
    parts: Vec<Entry>,
    applied: Cursor,
}

impl FollowedRecords {
    /// Reads everything below the prefixes, and follows changes.
    pub async fn start(connection: &Connection, prefixes: &[Prefix]) -> Result<Self, Failure> {
        let watch = watch(connection, prefixes).await?;
        let mut followed =
            Self { watch, entries: BTreeMap::new(), parts: Vec::new(), applied: Cursor::default() };
        let mut snapshots = 0;
        while snapshots < prefixes.len() {
            let response = followed.watch.next().await.map_err(Failure::from)?;
            snapshots += usize::from(matches!(&response.kind, Some(Kind::Snapshot(part)) if part.last));
            followed.apply(response)?;
        }
        Ok(followed)
    }

    /// The records, by ascending key. Keys of newer releases are omitted.
    pub fn records(&self) -> Vec<StoredRecord> {
        let stored = |(key, entry): (&String, &Entry)| {
            let key = RecordKey::parse(key).ok()?;
            Some(StoredRecord { key, value: entry.value.clone(), revision: entry.revision })
        };
        self.entries.iter().filter_map(stored).collect()
    }

    /// Waits for a change, including changes that follow it at once.
    pub async fn changed(&mut self) -> Result<(), Failure> {
        while !self.next().await? {}
        let until = Instant::now() + COALESCE;
        // The watch may be cancelled while waiting.
        while let Ok(applied) = timeout_at(until, self.watch.next()).await {
            self.apply(applied.map_err(Failure::from)?)?;
        }
        // A snapshot is never shown in part.
        while !self.parts.is_empty() {
            self.next().await?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<bool, Failure> {
        let response = self.watch.next().await.map_err(Failure::from)?;
        self.apply(response)
    }

    /// Applies a message; returns whether it changed the records.
    fn apply(&mut self, response: WatchResponse) -> Result<bool, Failure> {
        match response.kind {
            Some(Kind::Snapshot(part)) => Ok(self.apply_snapshot(part)),
            Some(Kind::Delta(delta)) => {
                for entry in delta.puts {
                    self.entries.insert(entry.key.clone(), entry);
                }
                for key in delta.deletes {
                    self.entries.remove(&key);
                }
                self.acknowledge(delta.revision);
                Ok(true)
            }
            Some(Kind::Refused(refused)) => Err(failure_of(&refused)),
            _ => Ok(false),
        }
    }

    fn apply_snapshot(&mut self, part: Snapshot) -> bool {
        self.parts.extend(part.entries);
        if part.last {
            let below = |key: &str| match part.prefix.ends_with('/') {
                true => key.starts_with(&part.prefix),
                false => key == part.prefix,
            };
            self.entries.retain(|key, _| !below(key));
            self.entries.extend(self.parts.drain(..).map(|entry| (entry.key.clone(), entry)));
            self.acknowledge(part.revision);
        }
        part.last
    }

    fn acknowledge(&mut self, revision: Option<Revision>) {
        let Some(Revision { store_id, partition, number }) = revision else { return };
        if self.applied.store_id != store_id {
            self.applied = Cursor { store_id, ..Cursor::default() };
        }
        self.applied.numbers.insert(partition, number);
        let applied = watch_request::Kind::Applied(self.applied.clone());
        self.watch.send(&WatchRequest { kind: Some(applied) });
    }
}
