//! The format of a saved file: a header of fixed size, then a protobuf message of the watch protocol.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `fairrib\n` |
//! | 4 | format version |
//! | 8 | XXH3 of the rest |
//! | 8, not in a location | when the copy was last known to be current, in milliseconds since 1970 |
//! | rest | `fairmesh.v1.Snapshot`, with store id and revision; or `fairmesh.v1.Location` |
//!
//! Numbers are little-endian.

use std::time::{Duration, SystemTime};

use bytes::{Buf, BufMut, Bytes};
use fairmesh_model::{Location, Prefix, Revision};
use fairmesh_wire::v1;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::{SavedCopy, UnreadableCopy};
use crate::Entry;

const MAGIC: &[u8; 8] = b"fairrib\n";
/// The format version that this release writes and reads.
pub(super) const VERSION: u32 = 1;
const HEADER: usize = 20;

pub(super) fn encode(saved: &SavedCopy) -> Vec<u8> {
    let entries = saved.entries.iter().map(|(key, entry)| v1::Entry {
        key: key.to_string(),
        value: entry.value.clone(),
        revision: entry.revision,
    });
    let snapshot = v1::Snapshot {
        prefix: saved.prefix.to_string(),
        revision: Some(saved.revision.into()),
        entries: entries.collect(),
        last: true,
        age_ms: 0,
    };
    let at = saved.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut body = Vec::with_capacity(8 + snapshot.encoded_len());
    body.put_u64_le(u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
    body.extend(snapshot.encode_to_vec());
    add_header(&body)
}

/// Decodes the file of a subscription.
pub(super) fn decode(file: Bytes) -> Result<SavedCopy, UnreadableCopy> {
    let mut body = strip_header(file)?;
    let at = Duration::from_millis(body.try_get_u64_le().map_err(|_| UnreadableCopy::Time)?);
    let at = SystemTime::UNIX_EPOCH.checked_add(at).ok_or(UnreadableCopy::Time)?;
    let snapshot = v1::Snapshot::decode(body)?;
    let prefix = Prefix::new(snapshot.prefix)?;
    let revision = Revision::try_from(snapshot.revision.ok_or(UnreadableCopy::NoRevision)?)?;
    let entries = snapshot.entries.into_iter().map(|entry| {
        // Each value is copied, because a slice would keep the whole file in memory.
        let value = Bytes::copy_from_slice(&entry.value);
        (entry.key.into(), Entry { value, revision: entry.revision })
    });
    Ok(SavedCopy { prefix, revision, at, entries: entries.collect() })
}

pub(super) fn encode_location(location: &Location) -> Vec<u8> {
    add_header(&v1::Location::from(location.clone()).encode_to_vec())
}

/// Decodes the file of a location.
pub(super) fn decode_location(file: Bytes) -> Result<Location, UnreadableCopy> {
    Ok(v1::Location::decode(strip_header(file)?)?.try_into()?)
}

/// Prepends the header to a body.
fn add_header(body: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER + body.len());
    file.put_slice(MAGIC);
    file.put_u32_le(VERSION);
    file.put_u64_le(xxh3_64(body));
    file.put_slice(body);
    file
}

/// Checks the header and the checksum, and returns the body.
fn strip_header(mut file: Bytes) -> Result<Bytes, UnreadableCopy> {
    if file.len() < HEADER || !file.starts_with(MAGIC) {
        return Err(UnreadableCopy::NoHeader);
    }
    file.advance(MAGIC.len());
    let version = file.get_u32_le();
    if version != VERSION {
        return Err(UnreadableCopy::Format(version));
    }
    if file.get_u64_le() != xxh3_64(&file) {
        return Err(UnreadableCopy::Checksum);
    }
    Ok(file)
}
