//! HTTP/2, and gRPC over it.
//!
//! Heads are written as their own kind writes them, with the table of headers filled by the first of a connection. Of heads
//! that come nothing is decoded but that they begin with a status of 200.

mod caller;
mod frames;
mod heads;
mod link;
mod server;

pub(crate) use self::{caller::Caller, server::serve};

#[cfg(test)]
mod tests;
