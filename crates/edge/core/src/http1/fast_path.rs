//! The fast path: requests and responses that are forwarded from the buffers in which they were read.

mod exchange;
mod read_side;
