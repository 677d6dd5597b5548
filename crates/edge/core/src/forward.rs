//! Requests of clients: finds the service, sends the call with the client library, and returns its response.

pub mod body_limit;
pub mod boundary;
pub(crate) mod connect;
pub(crate) mod connection_handler;
pub mod connection_info;
pub mod error_response;
pub mod forwarder;
pub mod hop_by_hop;
pub mod host;
pub(crate) mod http1_handler;
pub(crate) mod loops;
pub mod misdirected;
pub mod origin;
pub mod request_limit;
pub(crate) mod rewrite;
pub mod tcp;
