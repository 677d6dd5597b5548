//! HTTP/2 connections of clients.

pub(crate) mod connection;
pub(crate) mod future_pool;
pub(crate) mod rapid_reset;
pub(crate) mod response_stall;
pub(crate) mod stream_drain;
