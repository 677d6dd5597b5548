//! The fast path: requests and responses that are forwarded from the buffers in which they were read.

mod exchange;
pub(crate) mod handler;
mod read_side;
