//! HTTP/2, and gRPC over it.
//!
//! Headers are encoded as other lean peers encode them, with the dynamic table filled by the first of a connection. Of
//! received headers nothing is decoded but that they begin with a status of 200.

mod caller;
mod frames;
mod header_block;
mod link;
mod server;

pub(crate) use self::{caller::Caller, server::serve};

#[cfg(test)]
mod tests;
