//! What accepted connections have in common: sockets, event loops, permits, and the PROXY protocol.

pub mod client_stream;
pub mod connection_permit;
pub mod cores;
pub mod first_bytes;
pub mod proxy_header;
pub mod socket;
pub mod transparent;

pub use fairmesh_wire::proxy_protocol;
