//! HPACK, the header compression of HTTP/2 (RFC 7541), independent of connections.
//!
//! The decoder's dynamic table holds parsed fields, so a repeated field costs only a clone. The encoder adds a field to
//! the dynamic table only once the field has repeated. Unique fields, such as ids and dates, therefore cannot evict
//! fields that repeat.

mod decoder;
mod dynamic_table;
mod encoder;
mod encoder_table;
mod field_hash;
mod header_field;
mod huffman;
mod primitives;
mod static_table;

#[cfg(test)]
mod tests;

pub use decoder::Decoder;
pub use encoder::{Block, Encoder};
pub use header_field::Field;

/// A header block that cannot be decoded. Holds the reason. The dynamic tables of the two sides no longer agree, so the
/// connection fails (RFC 9113 4.3, `COMPRESSION_ERROR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("undecodable header block: {0}")]
pub struct DecodeError(&'static str);

/// Default maximum size of a dynamic table, in bytes (RFC 9113 6.5.2).
const DEFAULT_TABLE_SIZE: usize = 4096;
/// Bytes that an entry counts in addition to its name and value (RFC 7541 4.1).
const ENTRY_OVERHEAD: usize = 32;
