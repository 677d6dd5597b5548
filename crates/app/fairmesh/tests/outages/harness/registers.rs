//! Registers stored as records: each register is an entry in the history of a policy that does not exist, which no
//! component uses.

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey, RecordKind, ServiceName};
use fairmesh_wire::record_encoding::{self, History};

use crate::checker::{Key, Value};

fn service() -> ServiceName {
    ServiceName::new("soak/registers").unwrap()
}

/// Prefix of all registers.
pub(crate) fn folder() -> Prefix {
    Prefix::history(RecordKind::Policy, &service())
}

pub(crate) fn key(key: Key) -> String {
    RecordKey::History(RecordKind::Policy, service(), key).to_string()
}

/// Parses the register from a key of the routing information base.
pub(crate) fn read_key(key: &str) -> Key {
    match RecordKey::parse(key).unwrap() {
        RecordKey::History(_, _, key) => key,
        other => panic!("{other} is no register"),
    }
}

pub(crate) fn value(value: Value) -> Bytes {
    encoded(RecordKey::Policy(service()), value, 0)
}

fn encoded(key: RecordKey, value: Value, ballast: usize) -> Bytes {
    let replaced_by = "x".repeat(ballast);
    let replaced_message = String::new();
    record_encoding::encode_history(&History {
        key,
        value: None,
        replaced_at_ms: value,
        replaced_by,
        replaced_message,
        revision: 0,
    })
}

pub(crate) fn read_value(bytes: &[u8]) -> Value {
    record_encoding::decode_history(bytes).unwrap().replaced_at_ms
}

/// Prefix of bulk data, apart from the registers, so that only replicas carry it.
pub(crate) fn bulk_folder() -> Prefix {
    Prefix::history(RecordKind::Service, &service())
}

pub(crate) fn bulk_key(key: Key) -> String {
    RecordKey::History(RecordKind::Service, service(), key).to_string()
}

/// A value of about `bytes` bytes.
pub(crate) fn bulk_value(value: Value, bytes: usize) -> Bytes {
    encoded(RecordKey::Service(service()), value, bytes)
}
