//! HTTP/1.1 connections of clients.

pub(crate) mod connection;
pub(crate) mod connection_end;
pub(crate) mod date;
pub(crate) mod fast_path;
pub(crate) mod read_side;
pub(crate) mod request_body;
pub(crate) mod request_handler;
pub mod request_offload;
pub(crate) mod serve;
pub(crate) mod upgraded_stream;

#[cfg(test)]
mod tests;
