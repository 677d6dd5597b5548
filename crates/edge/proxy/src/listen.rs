//! Listeners: sockets, TLS, the PROXY protocol, and the connections that they accept.

pub(crate) mod bind;
pub(crate) mod client_stream;
pub(crate) mod connection;
pub(crate) mod connection_permit;
pub(crate) mod cores;
pub(crate) mod listener_config;
pub(crate) mod metrics;
pub(crate) mod proxy_header;
pub mod proxy_protocol;
pub(crate) mod server;
pub(crate) mod socket;
pub(crate) mod tls;
