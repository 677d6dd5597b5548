//! Detects requests that a proxy forwards to itself, directly or through other proxies: the proxy may be
//! registered as an endpoint of a service that it forwards to, or its own connections may be captured.
//!
//! As in CDN-Loop (RFC 8586), a proxy adds its identity to each forwarded request, and recognises its own
//! identity in arriving requests. Programs may copy the headers of a request to the calls they make through
//! the same proxy, so only [`MAX_PASSES`] passes count as a loop. `Via` (RFC 9110 7.6.3) was rejected, since
//! some servers do not compress responses to requests that carry it.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    sync::LazyLock,
};

use fairmesh_headers::LOOP;
use http::{HeaderMap, HeaderValue};

/// Maximum number of times that a request may pass this proxy, as counted in its headers.
pub(crate) const MAX_PASSES: usize = 8;

/// Random identity of this proxy, which need only differ from other proxies' identities. Leaked once, so that copying
/// it does not touch a reference count shared between threads.
static IDENTITY: LazyLock<&'static str> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().build_hasher().finish()).leak());

/// The identity of this process in the loop header.
pub(crate) fn identity() -> &'static str {
    &IDENTITY
}

/// Number of times that a request with these header values has passed this proxy.
pub(crate) fn passes<'a>(values: impl Iterator<Item = &'a [u8]>) -> usize {
    values.filter(|value| *value == identity().as_bytes()).count()
}

/// Whether a request has passed this proxy [`MAX_PASSES`] times.
pub(crate) fn is_loop(headers: &HeaderMap) -> bool {
    passes(headers.get_all(LOOP).iter().map(HeaderValue::as_bytes)) >= MAX_PASSES
}

/// Adds the identity of this proxy to a request.
pub(crate) fn mark(headers: &mut HeaderMap) {
    headers.append(LOOP, HeaderValue::from_static(identity()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_is_detected_only_after_maximum_passes_of_same_proxy() {
        let mut headers = HeaderMap::new();
        for _ in 0..2 * MAX_PASSES {
            headers.append(LOOP, HeaderValue::from_static("0123456789abcdef-other"));
        }
        for _ in 0..MAX_PASSES {
            assert!(!is_loop(&headers));
            mark(&mut headers);
        }
        assert!(is_loop(&headers));
    }
}
