//! Code shared by all listeners: sockets, event loops, limits, and the PROXY protocol.

pub mod accept;
pub mod client_stream;
pub mod connection_permit;
pub mod event_loops;
pub mod first_bytes;
pub mod proxy_header;
pub(crate) mod silent_connections;
pub mod socket_options;
pub mod transparent_proxying;
pub mod unidentified_peers;

pub use fairmesh_wire::{LogLimiter, proxy_protocol};
