//! The two roles on a connection, and their limits.

use super::super::message::HEADER_LIST_LIMIT;

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Opens streams.
    Client,
    /// Serves streams.
    Server,
}

impl Role {
    /// Maximum size of a header block that continues in CONTINUATION frames, in bytes; a larger one ends the connection.
    /// It is a multiple of [`HEADER_LIST_LIMIT`], so that headers somewhat above that limit fail only their own call.
    pub(super) fn max_header_block(self) -> usize {
        match self {
            Self::Client => 16 * HEADER_LIST_LIMIT,
            Self::Server => 2 * HEADER_LIST_LIMIT,
        }
    }
}
