//! Reading the routing information base for a person.
//!
//! Through a watch that ends with its first snapshot, and not through `Read`: a snapshot comes in parts and so may be of
//! any size.

use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey, Revision};
use fairmesh_wire::{
    handshake::Connection,
    v1::{self, Entry, Subscribe, WatchRequest, watch_request, watch_response},
    watch::Watch,
};

use crate::failure::Failure;

/// How long a person waits for a whole snapshot.
const PATIENCE: Duration = Duration::from_secs(30);

/// What stands at one key.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The key.
    pub(crate) key: RecordKey,
    /// The bytes.
    pub(crate) value: Bytes,
    /// The number of the revision that wrote it.
    pub(crate) revision: u64,
}

/// Reads everything below the prefixes, in the order of keys within each. Keys that only a newer release knows are
/// left out.
pub(crate) async fn read(connection: &Connection, prefixes: &[Prefix]) -> Result<Vec<Stored>, Failure> {
    let snapshots = tokio::time::timeout(PATIENCE, snapshots(connection, prefixes));
    let entries = snapshots.await.map_err(|_| {
        Failure::failed(format!("no complete answer within {} s; ask for less, or again", PATIENCE.as_secs()))
    })??;
    let stored = |entry: Entry| {
        let key = RecordKey::parse(&entry.key).ok()?;
        Some(Stored { key, value: entry.value, revision: entry.revision })
    };
    Ok(entries.into_iter().filter_map(stored).collect())
}

/// Reads everything that there is at one revision, however long that takes as long as more of it comes; `seen` is told how
/// many entries came so far.
pub(crate) async fn everything(
    connection: &Connection,
    mut seen: impl FnMut(usize),
) -> Result<(Revision, Vec<Entry>), Failure> {
    let mut answers = watch(connection, &[Prefix::everything()]).await?;
    let mut entries = Vec::new();
    loop {
        let part = tokio::time::timeout(PATIENCE, next_part(&mut answers)).await.map_err(|_| {
            Failure::failed(format!("nothing more came for {} s; ask again", PATIENCE.as_secs()))
        })??;
        entries.extend(part.entries);
        seen(entries.len());
        if part.last {
            let revision = part.revision.unwrap_or_default();
            return Ok((Revision::try_from(revision).map_err(Failure::failed)?, entries));
        }
    }
}

async fn snapshots(connection: &Connection, prefixes: &[Prefix]) -> Result<Vec<Entry>, Failure> {
    let mut answers = watch(connection, prefixes).await?;
    let mut entries = Vec::new();
    for _ in prefixes {
        one_snapshot(&mut answers, &mut entries).await?;
    }
    Ok(entries)
}

/// Asks for prefixes, to be answered together, so that all are of one revision.
async fn watch(connection: &Connection, prefixes: &[Prefix]) -> Result<Watch, Failure> {
    let mut watch = connection.watch().await.map_err(Failure::failed)?;
    for (i, prefix) in prefixes.iter().enumerate() {
        let more = i + 1 < prefixes.len();
        let subscribe = Subscribe { prefix: prefix.to_string(), more, ..Subscribe::default() };
        watch.send(&WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    }
    Ok(watch)
}

/// Takes the next snapshot, whichever prefix it is of, in all its parts.
async fn one_snapshot(answers: &mut Watch, entries: &mut Vec<Entry>) -> Result<(), Failure> {
    loop {
        let part = next_part(answers).await?;
        entries.extend(part.entries);
        if part.last {
            return Ok(());
        }
    }
}

/// The next part of a snapshot.
async fn next_part(answers: &mut Watch) -> Result<v1::Snapshot, Failure> {
    loop {
        // Whatever else comes, such as what changes after the snapshot, is not part of the answer.
        match answers.next().await?.kind {
            Some(watch_response::Kind::Snapshot(part)) => return Ok(part),
            Some(watch_response::Kind::Refused(refused)) => {
                return Err(Failure::failed(format!("{}: {}", refused.prefix, refused.reason)));
            }
            _ => {}
        }
    }
}
