//! Entry points of fuzz targets.

use crate::passthrough::protocol_detect::{self, DetectedProtocol};

/// What the first bytes of a captured connection are taken for.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// HTTP/1.1, with the host of the first request.
    Http1(String),
    /// HTTP/2.
    Http2,
    /// Another protocol.
    Other,
}

/// Classifies the first bytes of a captured connection; `None` if more are needed.
pub fn classify(bytes: &[u8]) -> Option<FirstBytes> {
    // It changes what it reads.
    protocol_detect::classify(&mut bytes.to_vec()).map(|detected| match detected {
        DetectedProtocol::Http1(host) => FirstBytes::Http1(host),
        DetectedProtocol::Http2 => FirstBytes::Http2,
        DetectedProtocol::Other(_) => FirstBytes::Other,
    })
}
