//! Hop-by-hop headers (RFC 9110 7.6.1).
//!
//! `te: trailers` is forwarded: gRPC servers require it, and every connection to an endpoint supports trailers.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Headers that are always removed, even if `connection` does not list them. The proxy answers `expect` itself when
/// the body is first read. A `static`, since a constant would be rebuilt at each use.
static HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Removes the hop-by-hop headers of a request.
pub fn strip_request(headers: &mut HeaderMap) {
    if !headers.keys().any(|name| *name == header::TE || is_hop_by_hop(name)) {
        return;
    }
    let trailers = headers.get_all(header::TE).iter().any(wants_trailers);
    strip(headers);
    headers.remove(header::TE);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Sets `x-forwarded-proto`. Without TLS, an existing value stays, since a load balancer in front may have terminated
/// TLS.
pub(crate) fn set_forwarded_proto(headers: &mut HeaderMap, over_tls: bool) {
    if over_tls {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    } else if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
}

/// Removes the hop-by-hop headers of a response.
pub fn strip_response(headers: &mut HeaderMap) {
    if headers.keys().any(is_hop_by_hop) {
        strip(headers);
    }
}

/// Whether a header is hop-by-hop. All headers are checked in one pass before any removal: most messages have none,
/// and each removal hashes the name.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers.get_all(header::CONNECTION).iter().flat_map(names).collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn names(value: &HeaderValue) -> impl Iterator<Item = HeaderName> {
    let words = value.to_str().unwrap_or_default().split(',');
    // `close` and `keep-alive` are options, not names of headers. `content-length` frames the message and
    // must not be removed.
    words.filter_map(|word| word.trim().parse().ok()).filter(|name| *name != header::CONTENT_LENGTH)
}

fn wants_trailers(value: &HeaderValue) -> bool {
    let words = value.to_str().unwrap_or_default().split(',');
    words.map(str::trim).any(|word| word.eq_ignore_ascii_case("trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn headers_listed_in_connection_header_are_removed() {
        let mut headers = map(&[
            ("connection", "close, X-Secret, Content-Length"),
            ("x-secret", "1"),
            ("content-length", "3"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "h2c"),
            ("te", "gzip, Trailers"),
            ("expect", "100-continue"),
            ("accept", "text/html"),
        ]);
        strip_request(&mut headers);
        assert_eq!(headers, map(&[("content-length", "3"), ("accept", "text/html"), ("te", "trailers")]));
    }

    #[test]
    fn forwarded_proto_is_set_over_tls_and_left_unchanged_otherwise() {
        for (over_tls, said, told) in [
            (true, None, "https"),
            (true, Some("http"), "https"),
            (false, None, "http"),
            (false, Some("https"), "https"),
        ] {
            let mut headers: HeaderMap =
                said.map(|said| ("x-forwarded-proto", said)).map_or_else(HeaderMap::new, |pair| map(&[pair]));
            set_forwarded_proto(&mut headers, over_tls);
            assert_eq!(headers, map(&[("x-forwarded-proto", told)]), "{over_tls} {said:?}");
        }
    }

    #[test]
    fn te_header_is_kept_only_if_it_says_trailers() {
        let mut headers = map(&[("te", "gzip")]);
        strip_request(&mut headers);
        assert!(headers.is_empty());
    }
}
