//! Conversions between protobuf messages and the model.
//!
//! `From` converts to messages and cannot fail. `TryFrom` converts back and validates; its errors contain the path of
//! the field. Durations are whole milliseconds or microseconds on the wire, as each field says; fractions are cut
//! off.
//!
//! Each module has a subject of the model, like the modules of `fairmesh-model`, and names the `.proto` file of its
//! messages: `records.proto` has the records of all subjects. A module for each `.proto` file was rejected, since most
//! conversions would be in one.

mod endpoint;
mod gateway;
mod health;
mod host_speeds;
mod policy;
mod revision;
mod role_bindings;
mod shard;
mod topology;
mod traffic;
mod traffic_report;
mod trust_bundle;
mod workload;

use bytes::Bytes;
use fairmesh_model::{Invalid, ShardKey, StoreId};
pub use shard::interval;
pub use traffic::{read_shares, write_shares};
pub use traffic_report::{MAX_PROCESS_NAME, call_counts};

/// Encodes a store id as 16 bytes, big endian.
pub fn store_id_bytes(id: StoreId) -> Bytes {
    Bytes::copy_from_slice(&id.0.to_be_bytes())
}

/// Parses a store id.
pub fn store_id(bytes: &[u8]) -> Result<StoreId, Invalid> {
    read_u128("store_id", bytes).map(StoreId)
}

/// Encodes a shard key as 16 bytes, big endian.
pub fn shard_key_bytes(key: ShardKey) -> Bytes {
    Bytes::copy_from_slice(&key.0.to_be_bytes())
}

/// Parses a shard key.
pub fn shard_key(bytes: &[u8]) -> Result<ShardKey, Invalid> {
    read_u128("", bytes).map(ShardKey)
}

/// Parses a 128-bit number, big endian.
pub(crate) fn read_u128(field: &str, bytes: &[u8]) -> Result<u128, Invalid> {
    let wide = bytes.try_into().map(u128::from_be_bytes);
    wide.map_err(|_| Invalid::new(field, format!("has {} bytes", bytes.len()), "send 16 bytes, big endian"))
}

/// Parses an enum. Numbers that only a newer release knows are rejected.
pub(crate) fn read_enum<E: TryFrom<i32>>(field: &str, number: i32) -> Result<E, Invalid> {
    E::try_from(number).map_err(|_| {
        Invalid::new(field, format!("{number} is unknown here"), "upgrade this side, or send a known value")
    })
}

/// Unwraps a required message.
pub(crate) fn required<T>(field: &str, message: Option<T>) -> Result<T, Invalid> {
    message.ok_or_else(|| Invalid::new(field, "is missing", "send it"))
}
