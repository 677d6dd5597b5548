//! HTTP/1.1 connections of clients.

pub(crate) mod connection;
pub(crate) mod date;
pub(crate) mod fast_path;
pub(crate) mod handler;
pub mod offload;
pub(crate) mod outcome;
pub(crate) mod read_side;
pub(crate) mod request_body;
pub(crate) mod serve;
pub(crate) mod upgrade;

#[cfg(test)]
mod tests;
