//! HTTP/2, and gRPC over it.
//!
//! Headers are encoded as other lean peers do, using a dynamic table that the first message of a connection fills. Of
//! received headers, only a leading status of 200 is checked.

mod caller;
mod connection;
mod frames;
mod header_block;
mod server;

pub(crate) use self::{caller::Caller, server::serve};

#[cfg(test)]
mod tests;
