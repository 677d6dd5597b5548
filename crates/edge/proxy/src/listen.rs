//! What accepted connections have in common: sockets, event loops, permits, and the PROXY protocol.

pub(crate) mod client_stream;
pub(crate) mod connection_permit;
pub(crate) mod cores;
pub(crate) mod proxy_header;
pub mod proxy_protocol;
pub(crate) mod socket;
