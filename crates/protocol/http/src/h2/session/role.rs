//! The two roles in a connection, and their limits.

use super::super::message::HEADER_LIST_LIMIT;

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Opens streams.
    Client,
    /// Serves them.
    Server,
}

impl Role {
    /// Most bytes of a header block in several frames. Above the limit of headers, so that the sender gets a proper
    /// error, and so that a large response fails its call alone.
    pub(super) fn max_header_block(self) -> usize {
        match self {
            Self::Client => 16 * HEADER_LIST_LIMIT,
            Self::Server => 2 * HEADER_LIST_LIMIT,
        }
    }
}
