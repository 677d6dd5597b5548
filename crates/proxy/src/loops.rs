//! Requests that a proxy forwards to itself, directly or by way of others: it is registered as an endpoint of a service that it
//! forwards to, or its own connections are captured.
//!
//! As content delivery networks do (RFC 8586), a proxy adds its identity to each request that it forwards, and refuses one that has it
//! already. Since programs that copy the headers of a request to the calls that they make for it may come through the same proxy
//! several times, it does so from [`MOST_PASSES`] on. `Via` (RFC 9110 7.6.3) would do as well, but servers that find it do not
//! compress their responses.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    sync::LazyLock,
};

use fairmesh_headers::LOOP;
use http::{HeaderMap, HeaderValue};

/// How many times one request may pass this proxy, headers that its programs copied included. A loop has no end.
pub(crate) const MOST_PASSES: usize = 8;

/// Drawn at start: it only has to differ from those of other proxies. Leaked once, so that a copy costs no counter that threads share.
static IDENTITY: LazyLock<&'static str> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().build_hasher().finish()).leak());

/// What this process is called in the header.
pub(crate) fn identity() -> &'static str {
    &IDENTITY
}

/// How many times a request with these values of the header passed this proxy before.
pub(crate) fn passes<'a>(values: impl Iterator<Item = &'a [u8]>) -> usize {
    values.filter(|value| *value == identity().as_bytes()).count()
}

/// Whether a request passed this proxy as often as it may.
pub(crate) fn is_loop(headers: &HeaderMap) -> bool {
    passes(headers.get_all(LOOP).iter().map(HeaderValue::as_bytes)) >= MOST_PASSES
}

/// Adds this proxy to those that forwarded a request.
pub(crate) fn mark(headers: &mut HeaderMap) {
    headers.append(LOOP, HeaderValue::from_static(identity()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_passed_this_proxy_too_often_is_a_loop() {
        let mut headers = HeaderMap::new();
        for _ in 0..2 * MOST_PASSES {
            headers.append(LOOP, HeaderValue::from_static("0123456789abcdef-other"));
        }
        for _ in 0..MOST_PASSES {
            assert!(!is_loop(&headers));
            mark(&mut headers);
        }
        assert!(is_loop(&headers));
    }
}
