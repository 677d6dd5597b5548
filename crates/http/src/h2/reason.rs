//! Why a stream or a connection ends (RFC 9113 7).

use std::{convert::Infallible, fmt};

use crate::BoxError;

/// An error code. Those that nobody has named are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// Nothing is wrong.
    pub const NO_ERROR: Self = Self(0x0);
    /// The other side does what the protocol forbids.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// Something went wrong here.
    pub const INTERNAL_ERROR: Self = Self(0x2);
    /// More was sent than there was room for.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// Something came on a stream that had ended.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame is too long, or not as long as its kind is.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// Nothing was done for the stream; it may be asked again.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// Nobody needs the stream any more.
    pub const CANCEL: Self = Self(0x8);
    /// The table of fields is lost.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// The other side asks for too much.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);

    fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NO_ERROR => "NO_ERROR",
            Self::PROTOCOL_ERROR => "PROTOCOL_ERROR",
            Self::INTERNAL_ERROR => "INTERNAL_ERROR",
            Self::FLOW_CONTROL_ERROR => "FLOW_CONTROL_ERROR",
            Self::STREAM_CLOSED => "STREAM_CLOSED",
            Self::FRAME_SIZE_ERROR => "FRAME_SIZE_ERROR",
            Self::REFUSED_STREAM => "REFUSED_STREAM",
            Self::CANCEL => "CANCEL",
            Self::COMPRESSION_ERROR => "COMPRESSION_ERROR",
            Self::ENHANCE_YOUR_CALM => "ENHANCE_YOUR_CALM",
            _ => return None,
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a body broke off, as far as the other side is told with the reset of its stream.
pub trait ResetReason {
    /// The reason.
    fn reset_reason(&self) -> Reason {
        Reason::INTERNAL_ERROR
    }
}

impl ResetReason for Infallible {}

impl ResetReason for BoxError {}

/// What the other side did that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why} ({reason})")]
pub struct Violation {
    /// What the other side is told.
    pub reason: Reason,
    /// In words.
    pub why: &'static str,
}

impl Violation {
    /// A connection carries nothing but frames that ask for nothing.
    pub const FLOOD: Self =
        Self::new(Reason::ENHANCE_YOUR_CALM, "frames that ask for nothing came without end");
    /// Most of what is asked is taken back.
    pub const RESTLESS: Self = Self::new(Reason::ENHANCE_YOUR_CALM, "most requests were taken back");

    pub(super) const fn new(reason: Reason, why: &'static str) -> Self {
        Self { reason, why }
    }

    pub(super) const fn protocol(why: &'static str) -> Self {
        Self::new(Reason::PROTOCOL_ERROR, why)
    }

    pub(super) const fn size(why: &'static str) -> Self {
        Self::new(Reason::FRAME_SIZE_ERROR, why)
    }
}
