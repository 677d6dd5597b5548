//! The proxy in front of a server: registers a program without the library as an endpoint, and forwards its calls.

mod caller_handler;
mod caller_headers;
mod caller_stream;
pub(crate) mod config;
mod local_forwarder;
pub(crate) mod metrics;
mod peer;
pub(crate) mod program_front;
mod request_body;
mod response_body;
pub(crate) mod server;
