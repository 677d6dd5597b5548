//! Callers and servers that do as little as they can: beside them a proxy is the slowest, and what is measured.
//!
//! Their messages are what their own kind sends, and nothing else is understood.

pub(super) mod http1;
pub(super) mod http2;
