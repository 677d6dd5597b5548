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
    /// Receive window of the connection, in bytes. Calls to one server share a connection as long as it allows, so a
    /// client's must serve all of them.
    pub(super) fn window(self) -> u32 {
        match self {
            Self::Client => 4 << 20,
            Self::Server => 1 << 20,
        }
    }

    /// Most bytes of a header block in several frames. Above the limit of headers, so that the sender gets a proper
    /// error, and so that a large response fails its call alone.
    pub(super) fn max_header_block(self) -> usize {
        match self {
            Self::Client => 16 * HEADER_LIST_LIMIT,
            Self::Server => 2 * HEADER_LIST_LIMIT,
        }
    }
}
