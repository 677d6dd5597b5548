//! Entry points of fuzz targets.

pub use fairmesh_edge::listen::first_bytes::FirstBytes;

/// Classifies the first bytes of a captured connection; `None` if more are needed.
pub fn classify(bytes: &[u8]) -> Option<FirstBytes> {
    // Copied, since classification modifies the bytes.
    FirstBytes::classify(&mut bytes.to_vec())
}
