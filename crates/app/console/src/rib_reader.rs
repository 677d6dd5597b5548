//! Reads the routing information base for commands.
//!
//! Uses a watch that ends with its first snapshot rather than `Read`: a snapshot is sent in parts, so its size is not
//! limited.

mod followed_records;

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::{
    Label, Prefix, Record, RecordKey, Revision, Revocations, ServiceName, SpiffeId, SpiffePath, TrustBundle,
};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{self, Entry, Subscribe, WatchRequest, watch_request, watch_response},
    watch::Watch,
};

use crate::{failure::Failure, view_reader::ALL_TENANTS};
pub use fairmesh_views::StoredRecord;
pub use followed_records::FollowedRecords;

/// Time limit for a whole snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads everything below the prefixes, by ascending key within each. Keys of newer releases are omitted.
pub async fn read(connection: &Connection, prefixes: &[Prefix]) -> Result<Vec<StoredRecord>, Failure> {
    let snapshots = tokio::time::timeout(SNAPSHOT_TIMEOUT, snapshots(connection, prefixes));
    let entries = snapshots.await.map_err(|_| {
        Failure::failed(format!(
            "no complete response within {} s; request less, or retry",
            SNAPSHOT_TIMEOUT.as_secs()
        ))
    })??;
    let stored = |entry: Entry| {
        let key = RecordKey::parse(&entry.key).ok()?;
        Some(StoredRecord { key, value: entry.value, revision: entry.revision })
    };
    Ok(entries.into_iter().filter_map(stored).collect())
}

/// The trust domain of the mesh with its roots, if it has one.
pub async fn trust_bundle(connection: &Connection) -> Result<Option<TrustBundle>, Failure> {
    let key = RecordKey::TrustBundle;
    for stored in read(connection, &[Prefix::from(&key)]).await? {
        if let Record::TrustBundle(bundle) = record_encoding::decode(&key, &stored.value)? {
            return Ok(Some(bundle));
        }
    }
    Ok(None)
}

/// The revocations. Empty if the caller may not read them.
pub async fn revocations(connection: &Connection) -> Revocations {
    let key = RecordKey::Revocations;
    let stored = read(connection, &[Prefix::from(&key)]).await.unwrap_or_default();
    let decoded = stored.iter().find_map(|stored| match record_encoding::decode(&key, &stored.value) {
        Ok(Record::Revocations(revocations)) => Some(revocations),
        _ => None,
    });
    decoded.unwrap_or_default()
}

/// The elected checkers. Empty if the caller may not read them.
pub async fn checkers(connection: &Connection) -> BTreeSet<Label> {
    let stored = read(connection, &[Prefix::checkers()]).await.unwrap_or_default();
    let decoded =
        stored.iter().filter_map(|stored| match record_encoding::decode(&stored.key, &stored.value) {
            Ok(Record::ElectedChecker(checker)) => Some(checker.agent),
            _ => None,
        });
    decoded.collect()
}

/// The identity that endpoints of a service prove; `None` if the mesh has no trust domain.
pub async fn identity_of_service(
    connection: &Connection,
    service: &ServiceName,
) -> Result<Option<SpiffeId>, Failure> {
    let bundle = trust_bundle(connection).await?;
    Ok(bundle.map(|bundle| SpiffePath::Service(service.clone()).within(&bundle.domain)))
}

/// Reads everything at one revision, without a time limit as long as parts arrive. Calls `seen` with the number of
/// entries so far.
pub async fn read_all(
    connection: &Connection,
    mut seen: impl FnMut(usize),
) -> Result<(Revision, Vec<Entry>), Failure> {
    let mut responses = watch(connection, &[Prefix::everything()]).await?;
    let mut entries = Vec::new();
    loop {
        let part = tokio::time::timeout(SNAPSHOT_TIMEOUT, next_part(&mut responses))
            .await
            .map_err(|_| Failure::failed(format!("no data for {} s; retry", SNAPSHOT_TIMEOUT.as_secs())))??;
        entries.extend(part.entries);
        seen(entries.len());
        if part.last {
            let revision = part.revision.unwrap_or_default();
            return Ok((Revision::try_from(revision).map_err(Failure::failed)?, entries));
        }
    }
}

async fn snapshots(connection: &Connection, prefixes: &[Prefix]) -> Result<Vec<Entry>, Failure> {
    let mut responses = watch(connection, prefixes).await?;
    let mut entries = Vec::new();
    for _ in prefixes {
        receive_snapshot(&mut responses, &mut entries).await?;
    }
    Ok(entries)
}

/// Subscribes to all prefixes at one revision.
async fn watch(connection: &Connection, prefixes: &[Prefix]) -> Result<Watch, Failure> {
    let mut watch = connection.watch().await.map_err(Failure::failed)?;
    for (i, prefix) in prefixes.iter().enumerate() {
        let more = i + 1 < prefixes.len();
        let subscribe = Subscribe { prefix: prefix.to_string(), more, ..Subscribe::default() };
        watch.send(&WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    }
    Ok(watch)
}

/// Receives the next snapshot, of any prefix, with all its parts.
async fn receive_snapshot(responses: &mut Watch, entries: &mut Vec<Entry>) -> Result<(), Failure> {
    loop {
        let part = next_part(responses).await?;
        entries.extend(part.entries);
        if part.last {
            return Ok(());
        }
    }
}

/// The next part of a snapshot.
async fn next_part(responses: &mut Watch) -> Result<v1::Snapshot, Failure> {
    loop {
        // Other messages, such as deltas after the snapshot, are ignored.
        match responses.next().await?.kind {
            Some(watch_response::Kind::Snapshot(part)) => return Ok(part),
            Some(watch_response::Kind::Refused(refused)) => return Err(failure_of(&refused)),
            _ => {}
        }
    }
}

/// The error for a refused prefix. Callers with roles for some tenants may read these tenants, but not all at once.
fn failure_of(refused: &v1::Refused) -> Failure {
    let v1::Refused { prefix, reason } = refused;
    let message = if reason.contains(prefix) { reason.clone() } else { format!("{prefix}: {reason}") };
    if prefix != ALL_TENANTS {
        return Failure::failed(message).into_refusal();
    }
    Failure::failed_with(
        message,
        "with roles for some tenants, read one of them, as in 'fairmesh get services --tenant shop', or one service; 'fairmesh identity \
         whoami' shows your roles",
    )
    .into_refusal()
}
