//! The proxy in front of a server: registers a program without the library as an endpoint, and forwards its calls.

mod body;
pub(crate) mod config;
mod local_forwarder;
pub(crate) mod metrics;
pub(crate) mod server;
