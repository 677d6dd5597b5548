//! Connections over real sockets.

// Clippy takes helpers of tests for production code.
#![allow(clippy::unwrap_used)]

mod connect;
mod listen;
mod support;
