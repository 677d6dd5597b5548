//! Clients and servers with the least work per message, so that the proxy between them is the bottleneck.
//!
//! They parse the messages of their own counterparts only.

pub(super) mod http1;
pub(super) mod http2;
