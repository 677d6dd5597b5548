//! The form of one file: a header of fixed size, then the entries as the protobuf message that carries them elsewhere.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `fairrib\n` |
//! | 4 | format version |
//! | 8 | XXH3 of all that follows |
//! | 8 | when it was current, in milliseconds since 1970 |
//! | rest | `fairmesh.v1.Snapshot`, with store id and revision |
//!
//! Numbers are little endian.

use std::time::{Duration, SystemTime};

use bytes::{Buf, BufMut, Bytes};
use fairmesh_model::{Prefix, Revision};
use fairmesh_wire::v1;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::Saved;
use crate::Entry;

const MAGIC: &[u8; 8] = b"fairrib\n";
const VERSION: u32 = 1;
const HEADER: usize = 28;

pub(super) fn encode(saved: &Saved) -> Vec<u8> {
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
    let mut file = Vec::with_capacity(HEADER + body.len());
    file.put_slice(MAGIC);
    file.put_u32_le(VERSION);
    file.put_u64_le(xxh3_64(&body));
    file.extend(body);
    file
}

/// Reads a file; the error says what is wrong with it.
pub(super) fn decode(mut file: Bytes) -> Result<Saved, String> {
    if file.len() < HEADER || !file.starts_with(MAGIC) {
        return Err("it is cut short or no saved copy".into());
    }
    file.advance(MAGIC.len());
    let version = file.get_u32_le();
    if version != VERSION {
        return Err(format!("it has format {version}, and this release reads {VERSION}"));
    }
    if file.get_u64_le() != xxh3_64(&file) {
        return Err("its checksum does not fit its content".into());
    }
    let at = Duration::from_millis(file.get_u64_le());
    let at = SystemTime::UNIX_EPOCH.checked_add(at).ok_or("its time is out of range")?;
    let snapshot = v1::Snapshot::decode(file).map_err(|error| error.to_string())?;
    let prefix = Prefix::new(snapshot.prefix).map_err(|error| error.to_string())?;
    let revision = snapshot.revision.ok_or("it has no revision")?;
    let revision = Revision::try_from(revision).map_err(|error| error.to_string())?;
    let entries = snapshot.entries.into_iter().map(|entry| {
        // Own memory for each value: a small one must not keep the whole file.
        let value = Bytes::copy_from_slice(&entry.value);
        (entry.key.into(), Entry { value, revision: entry.revision })
    });
    Ok(Saved { prefix, revision, at, entries: entries.collect() })
}
