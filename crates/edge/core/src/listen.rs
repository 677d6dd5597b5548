//! What accepted connections have in common: sockets, event loops, permits, and the PROXY protocol.

pub mod client_stream;
pub mod connection_permit;
pub mod cores;
pub(crate) mod proxy_header;
pub mod proxy_protocol;
pub mod socket;
