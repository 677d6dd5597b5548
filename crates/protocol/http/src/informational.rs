//! Informational responses (RFC 9110 15.2), such as 103 (Early Hints), on their way from a server to the client of a
//! proxy.
//!
//! Informational responses precede the response of a call; most calls have none. A connection to a server delivers them
//! while the call is polled. A proxy polls the call within [`collect`], and forwards the informational responses that
//! arrived meanwhile. Elsewhere they are dropped, for example in mirrored calls and for users of the library. 100
//! (Continue) and 101 concern the connection alone and are never delivered.
//!
//! Rejected: a channel in the extensions of each request, because it would cost every call an allocation.

use std::cell::RefCell;

use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use crate::h2::keep_allowed;

/// Maximum number of informational responses before one response, including 100 (Continue).
const MAX_RESPONSES: u32 = 32;
/// Maximum total size of their headers in bytes, as for one response.
const MAX_BYTES: usize = 64 * 1024;

thread_local! {
    /// Responses delivered during [`collect`]. Calls within [`collect`] are polled on the thread that reads their
    /// responses.
    static DELIVERED: RefCell<Option<Vec<Response<()>>>> = const { RefCell::new(None) };
}

/// Polls a call. Returns its result, and the informational responses delivered meanwhile, in order.
#[inline]
pub fn collect<T>(poll: impl FnOnce() -> T) -> (T, Vec<Response<()>>) {
    let outer = DELIVERED.replace(Some(Vec::new()));
    let polled = poll();
    (polled, DELIVERED.replace(outer).unwrap_or_default())
}

/// Delivers an informational response, without its hop-by-hop headers.
#[cold]
pub fn deliver(mut response: Response<()>) {
    DELIVERED.with_borrow_mut(|delivered| {
        if let Some(delivered) = delivered {
            strip(response.headers_mut());
            delivered.push(response);
        }
    });
}

/// Removes hop-by-hop headers (RFC 9110 7.6.1), and the length, which an informational response must not have (8.6).
fn strip(headers: &mut HeaderMap) {
    let named = |value: &HeaderValue| {
        let names = value.as_bytes().split(|byte| *byte == b',');
        names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect::<Vec<_>>()
    };
    let named: Vec<HeaderName> = headers.get_all(header::CONNECTION).iter().flat_map(named).collect();
    for name in named {
        headers.remove(name);
    }
    headers.remove(header::CONTENT_LENGTH);
    keep_allowed(headers);
}

/// Number and size of the informational responses before a response.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    responses: u32,
    bytes: usize,
}

impl Budget {
    /// Whether no informational response was counted.
    pub(crate) fn is_unused(&self) -> bool {
        self.responses == 0
    }

    /// Counts an informational response whose headers take `bytes`. Returns whether it is within the bounds.
    pub(crate) fn admits(&mut self, bytes: usize) -> bool {
        self.responses += 1;
        self.bytes += bytes;
        self.responses <= MAX_RESPONSES && self.bytes <= MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn hints(fields: &[(&'static str, &'static str)]) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::EARLY_HINTS;
        for (name, value) in fields {
            response.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        response
    }

    #[test]
    fn informational_responses_reach_only_their_own_call() {
        deliver(hints(&[("link", "outside")]));
        let (polled, seen) = collect(|| {
            deliver(hints(&[("link", "outer")]));
            let ((), inner) = collect(|| deliver(hints(&[("link", "inner")])));
            assert_eq!(inner[0].headers()["link"], "inner");
            7
        });
        assert_eq!(
            (polled, seen.len(), &seen[0].headers()["link"]),
            (7, 1, &HeaderValue::from_static("outer"))
        );
        assert!(collect(|| ()).1.is_empty());
    }

    #[test]
    fn hop_by_hop_headers_of_informational_responses_are_removed() {
        let ((), seen) = collect(|| {
            deliver(hints(&[
                ("connection", "close, X-Own"),
                ("x-own", "1"),
                ("content-length", "3"),
                ("transfer-encoding", "chunked"),
                ("keep-alive", "timeout=5"),
                ("link", "</a.css>"),
            ]));
        });
        assert_eq!(seen[0].headers(), hints(&[("link", "</a.css>")]).headers());
    }

    #[test]
    fn informational_responses_are_bounded_in_number_and_size() {
        let mut budget = Budget::default();
        assert!((0..MAX_RESPONSES).all(|_| budget.admits(10)) && !budget.admits(10));
        let mut budget = Budget::default();
        assert!(budget.admits(MAX_BYTES) && !budget.admits(1));
    }
}
