//! Registers as records: each is a change in the history of a policy that does not exist, which nobody acts on.

use bytes::Bytes;
use fairmesh_model::{HistoryKind, Prefix, RecordKey, ServiceName};
use fairmesh_wire::records::{self, History};

use crate::checker::{Key, Value};

fn service() -> ServiceName {
    ServiceName::new("soak/registers").unwrap()
}

/// The folder of all registers.
pub(crate) fn folder() -> Prefix {
    Prefix::history(HistoryKind::Policies, &service())
}

pub(crate) fn key(key: Key) -> String {
    RecordKey::History(HistoryKind::Policies, service(), key).to_string()
}

/// The register of a key of the routing information base.
pub(crate) fn read_key(key: &str) -> Key {
    match RecordKey::parse(key).unwrap() {
        RecordKey::History(_, _, key) => key,
        other => panic!("{other} is no register"),
    }
}

/// A value with so many bytes of ballast.
pub(crate) fn value(value: Value, ballast: usize) -> Bytes {
    records::encode_history(&History {
        key: RecordKey::Policy(service()),
        value: None,
        replaced_at_ms: value,
        replaced_by: "x".repeat(ballast),
        revision: 0,
    })
}

pub(crate) fn read_value(bytes: &[u8]) -> Value {
    records::decode_history(bytes).unwrap().replaced_at_ms
}
