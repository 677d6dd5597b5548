//! Requests of clients: finds the service, sends the call with the client library, and returns its response.

pub(crate) mod connect;
pub(crate) mod connection_handler;
pub mod connection_info;
pub mod connection_origin;
pub mod error_response;
pub mod forwarder;
pub(crate) mod header_rewrite;
pub mod hop_by_hop;
pub mod host_lookup;
pub(crate) mod http1_handler;
pub(crate) mod loop_detection;
pub mod mesh_boundary;
pub mod misdirected_request;
pub mod request_body_rules;
pub mod request_limit;
pub mod tcp;
