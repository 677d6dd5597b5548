//! The proxy in front of a server: registers a program that does not link the library as an endpoint, and
//! forwards calls to it.

mod caller_handler;
mod caller_headers;
mod caller_stream;
pub(crate) mod config;
mod local_forwarder;
mod local_transport;
pub(crate) mod metrics;
mod peer;
pub(crate) mod program_front;
mod request_body;
mod response_body;
pub(crate) mod server;
