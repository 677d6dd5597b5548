//! What accepted connections have in common: sockets, event loops, limits, and the PROXY protocol.

pub mod accept;
pub mod client_stream;
pub mod connection_permit;
pub mod cores;
pub mod first_bytes;
pub mod proxy_header;
pub(crate) mod silent_connections;
pub mod socket;
pub mod transparent;
pub mod unidentified;

pub use fairmesh_wire::proxy_protocol;
