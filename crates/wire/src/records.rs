//! The bytes that stand at RIB keys.
//!
//! A key says which message its value holds, so values carry no type tag. Readers validate again: bytes may come from
//! an older writer, a foreign client of the store or a damaged disk, and none of them may reach a router.

use bytes::Bytes;
use fairmesh_model::{Invalid, Record, RecordKey};

/// The longest value at any key, in bytes; etcd refuses requests above 1.5 MB, and a batch holds several values.
pub const MAX_VALUE: usize = 256 * 1024;

/// An earlier value of a record, as it stands at [`RecordKey::History`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The key it stood at: a service or a policy.
    pub key: RecordKey,
    /// The value, or `None` where the record did not exist.
    pub value: Option<Bytes>,
    /// When it was replaced, in milliseconds since 1970.
    pub replaced_at_ms: u64,
    /// Who replaced it.
    pub replaced_by: String,
    /// The revision that had written it; 0 where the record did not exist.
    pub revision: u64,
}

/// Encodes a record. One record has one encoding, so that equal bytes mean an unchanged record.
pub fn encode(record: &Record) -> Bytes {
    let _ = record;
    unimplemented!()
}

/// Decodes what stands at `key`. Fails for keys that hold no [`Record`]: parts of shard maps, and history.
pub fn decode(key: &RecordKey, value: &[u8]) -> Result<Record, Invalid> {
    let _ = (key, value);
    unimplemented!()
}

/// Encodes an earlier value.
pub fn encode_history(history: &History) -> Bytes {
    let _ = history;
    unimplemented!()
}

/// Decodes an earlier value, the value within it included.
pub fn decode_history(value: &[u8]) -> Result<History, Invalid> {
    let _ = value;
    unimplemented!()
}

/// Checks that `key` is a RIB key in its one spelling and that `value` is what belongs there, parts of shard maps and
/// history included. What a server does before it writes.
pub fn check(key: &str, value: &[u8]) -> Result<RecordKey, Invalid> {
    let _ = (key, value);
    unimplemented!()
}
