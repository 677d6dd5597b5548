//! Connections over real sockets.

// Clippy treats test helpers as production code.
#![allow(clippy::unwrap_used)]

mod connect;
mod listen;
mod support;
