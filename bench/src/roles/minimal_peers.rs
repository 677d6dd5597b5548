//! Clients and servers with minimal work per message, so that the proxy between them is the bottleneck.
//!
//! They parse only messages of their own counterparts.

pub(super) mod http1;
pub(super) mod http2;
