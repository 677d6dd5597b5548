//! Why nothing more comes on a stream.

use std::io;

use super::{Reason, Violation};

/// Why a message ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The other side has reset the stream.
    #[error("the stream was reset: {0}")]
    Reset(Reason),
    /// The other side goes, and did not look at the stream.
    #[error("the connection ends, and the request was not looked at: {0}")]
    Unseen(Reason),
    /// What came on the stream is no message.
    #[error("what came is no answer: {0}")]
    Malformed(Reason),
    /// What came is larger than what is taken.
    #[error("the response has more than 128 headers, or 64 KB of them")]
    TooLarge,
    /// It was reset here, by whoever needed it no more.
    #[error("it was given up")]
    GivenUp,
    /// The other side did what ends the connection.
    #[error("the connection was ended: {0}")]
    Violated(#[source] Violation),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(io::ErrorKind),
}

impl Lost {
    /// Whether the other side has done what the protocol forbids.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::TooLarge | Self::Violated(_))
    }
}
