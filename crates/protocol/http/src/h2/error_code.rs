//! Error codes and protocol violations (RFC 9113 7).

use std::{convert::Infallible, fmt};

use crate::BoxError;

/// An HTTP/2 error code; unknown codes are preserved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// Graceful close.
    pub const NO_ERROR: Self = Self(0x0);
    /// A protocol violation.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// An internal error.
    pub const INTERNAL_ERROR: Self = Self(0x2);
    /// The flow-control window was exceeded.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// A frame on a closed stream.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame of invalid size.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The stream was not processed; it may be retried.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// The stream is no longer needed.
    pub const CANCEL: Self = Self(0x8);
    /// HPACK decoding failed: the compression state of the connection is lost.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// Excessive load.
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

/// Chooses the error code of the RST_STREAM that is sent when a body fails.
pub trait ResetReason {
    /// The error code.
    fn reset_reason(&self) -> Reason {
        Reason::INTERNAL_ERROR
    }
}

impl ResetReason for Infallible {}

impl ResetReason for BoxError {}

/// A connection error: the peer violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why} ({reason})")]
pub struct Violation {
    /// The error code of GOAWAY.
    pub reason: Reason,
    /// Description of the violation.
    pub why: &'static str,
}

impl Violation {
    /// Too many frames that carry neither headers nor data.
    pub const FLOOD: Self = Self::new(Reason::ENHANCE_YOUR_CALM, "too many frames without headers or data");
    /// Too many requests cancelled by the client (CVE-2023-44487).
    pub const RAPID_RESET: Self = Self::new(Reason::ENHANCE_YOUR_CALM, "the client cancelled most requests");

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
