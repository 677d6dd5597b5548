//! Header compression of HTTP/2 (RFC 7541), without connections.
//!
//! What comes in is understood once: the dynamic table keeps typed fields, so that one that repeats from request to request
//! costs a clone. What goes out is put into the dynamic table once it is known to repeat, so that ids and dates, which do not,
//! cannot push out what does.

mod decoder;
mod encoder;
mod entries;
mod field;
mod hash;
mod huffman;
mod primitives;
mod repeats;
mod table;

#[cfg(test)]
mod tests;

pub use decoder::Decoder;
pub use encoder::{Block, Encoder};
pub use field::Field;

/// A block that cannot be decoded; says why. Both sides no longer have the same dynamic table: the connection is lost
/// (RFC 9113 4.3, `COMPRESSION_ERROR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a header block that cannot be decoded: {0}")]
pub struct Broken(&'static str);

/// The size of a dynamic table until something else is agreed on (RFC 9113 6.5.2).
const DEFAULT_SIZE: usize = 4096;
/// What an entry counts beyond its name and value (RFC 7541 4.1).
const OVERHEAD: usize = 32;
