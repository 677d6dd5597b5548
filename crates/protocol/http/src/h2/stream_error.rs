//! Errors of a single stream.

use std::io;

use super::{Reason, Violation};

/// Why a message is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The peer reset the stream.
    #[error("the stream was reset: {0}")]
    Reset(Reason),
    /// GOAWAY shows that the peer did not process the stream.
    #[error("the connection is closing, and the request was not processed: {0}")]
    Unprocessed(Reason),
    /// The response is malformed.
    #[error("the response is malformed: {0}")]
    Malformed(Reason),
    /// The headers exceed the limits.
    #[error("the response has more than 128 headers, or 64 KB of them")]
    TooLarge,
    /// This side cancelled the stream.
    #[error("the call was cancelled")]
    Cancelled,
    /// The peer violated the protocol, which ended the connection.
    #[error("the connection was ended by a protocol violation: {0}")]
    Violation(#[source] Violation),
    /// The transport failed.
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
}

impl StreamError {
    /// Whether the peer violated the protocol.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::TooLarge | Self::Violation(_))
    }
}
