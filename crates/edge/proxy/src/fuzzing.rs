//! Entry points of fuzz targets.

pub use fairmesh_edge::listen::first_bytes::FirstBytes;

use crate::kernel::local_answer::{LocalAnswer, Parties, read_answer};

/// Classifies the first bytes of a captured connection; `None` if more are needed.
pub fn classify(bytes: &[u8]) -> Option<FirstBytes> {
    // Copied, since classification modifies the bytes.
    FirstBytes::classify(&mut bytes.to_vec())
}

/// Lines that name `spiffe://prod/shop/web` as the caller, if a listener with the identity `spiffe://prod/shop/cart` answers by
/// this head that the kernel may carry requests.
pub fn local_answer(head: &[u8]) -> Option<Vec<u8>> {
    let [caller, server] = ["web", "cart"].map(|name| format!("spiffe://prod/shop/{name}").parse().ok());
    match read_answer(head, &Parties { caller: caller?, server: server? }).ok()?.0 {
        LocalAnswer::Permits(permission) => Some(permission.fields),
        LocalAnswer::Refuses { .. } | LocalAnswer::Unknown { .. } => None,
    }
}
