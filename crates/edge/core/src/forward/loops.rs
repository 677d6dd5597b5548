//! Loop detection: requests that a proxy forwards to itself, directly or through other proxies, because it is registered as an
//! endpoint of a service that it forwards to, or because its own connections are captured.
//!
//! As in CDN-Loop (RFC 8586), a proxy adds its identity to each request that it forwards, and refuses a request that carries it
//! already. Programs may copy the headers of a request to the calls that they make for it, through the same proxy, so that only
//! [`MAX_PASSES`] passes are a loop. `Via` (RFC 9110 7.6.3) was rejected, since some servers do not compress their responses to
//! requests that carry it.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    sync::LazyLock,
};

use fairmesh_headers::LOOP;
use http::{HeaderMap, HeaderValue};

/// Maximum number of passes of a request through this proxy, including copied headers.
pub(crate) const MAX_PASSES: usize = 8;

/// Random: it only has to differ from those of other proxies. Leaked once, so that a copy needs no counter shared by threads.
static IDENTITY: LazyLock<&'static str> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().build_hasher().finish()).leak());

/// The identity of this process in the header.
pub(crate) fn identity() -> &'static str {
    &IDENTITY
}

/// Number of passes of a request with these header values through this proxy.
pub(crate) fn passes<'a>(values: impl Iterator<Item = &'a [u8]>) -> usize {
    values.filter(|value| *value == identity().as_bytes()).count()
}

/// Whether a request has reached the maximum of passes.
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
    fn only_a_request_that_passed_this_proxy_too_often_is_a_loop() {
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
