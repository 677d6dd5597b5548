//! The fast path forwards requests and responses directly from the read buffers.

mod exchange;
mod read_side;
