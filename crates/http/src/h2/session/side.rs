//! The two sides of a connection, and in what they differ.

use super::super::message::MOST;

/// Which side of a connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The one that begins streams.
    Asking,
    /// The one that answers on them.
    Asked,
}

impl Side {
    /// What the other side may send ahead on all streams together, in bytes. Calls to one server share a connection as long as
    /// it allows, so this has to hold for all of them.
    pub(super) fn window(self) -> u32 {
        match self {
            Self::Asking => 4 << 20,
            Self::Asked => 1 << 20,
        }
    }

    /// The most bytes of a head that comes in several frames. What it holds may be more than is allowed, so that its sender is told,
    /// and that of an answer so that its call alone is lost.
    pub(super) fn longest_head(self) -> usize {
        match self {
            Self::Asking => 16 * MOST,
            Self::Asked => 2 * MOST,
        }
    }
}
