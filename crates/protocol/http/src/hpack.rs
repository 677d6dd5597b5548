//! HPACK, the header compression of HTTP/2 (RFC 7541), without connections.
//!
//! The decoder's dynamic table holds parsed fields, so that a repeated field costs a clone. The encoder adds a field
//! to the dynamic table once it is known to repeat, so that ids and dates, which do not, cannot evict fields that do.

mod decoder;
mod dynamic_table;
mod encoder;
mod encoder_table;
mod field;
mod field_hash;
mod huffman;
mod primitives;
mod static_table;

#[cfg(test)]
mod tests;

pub use decoder::Decoder;
pub use encoder::{Block, Encoder};
pub use field::Field;

/// A header block that cannot be decoded, with the reason. The dynamic tables of both sides no longer agree: the
/// connection fails (RFC 9113 4.3, `COMPRESSION_ERROR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("undecodable header block: {0}")]
pub struct DecodeError(&'static str);

/// Default size of a dynamic table (RFC 9113 6.5.2).
const DEFAULT_TABLE_SIZE: usize = 4096;
/// Overhead of an entry beyond its name and value (RFC 7541 4.1).
const ENTRY_OVERHEAD: usize = 32;
