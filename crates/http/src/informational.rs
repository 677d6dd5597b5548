//! Informational responses (RFC 9110 15.2), such as 103 (Early Hints), on their way from a server to the client of a proxy.
//!
//! They precede the response of a call, which nearly always comes without any. A connection to a server hands them over while the call
//! is polled; a proxy polls the call within [`during`], and forwards those that came meanwhile. Elsewhere they are dropped, as
//! for a program that uses the library and for mirrored calls. 100 (Continue) is for the connection alone and never comes here, nor does 101.
//! Rejected: a channel in the extensions of each request, which would cost every call an allocation.

use std::cell::RefCell;

use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use crate::h2::keep_allowed;

/// The most informational responses before one response of a server, 100 (Continue) included.
const MOST: u32 = 32;
/// The most bytes that their headers take together, as with those of one response.
const MOST_BYTES: usize = 64 * 1024;

thread_local! {
    /// Those that came while a call is polled by [`during`]. Such calls are polled on the thread that reads their responses.
    static CAME: RefCell<Option<Vec<Response<()>>>> = const { RefCell::new(None) };
}

/// Polls a call; what that returns, and the informational responses that came meanwhile, in their order.
#[inline]
pub fn during<T>(poll: impl FnOnce() -> T) -> (T, Vec<Response<()>>) {
    let outer = CAME.replace(Some(Vec::new()));
    let polled = poll();
    (polled, CAME.replace(outer).unwrap_or_default())
}

/// Hands one over, without what belongs to its connection.
#[cold]
pub fn came(mut response: Response<()>) {
    CAME.with_borrow_mut(|came| {
        if let Some(came) = came {
            strip(response.headers_mut());
            came.push(response);
        }
    });
}

/// Takes out what belongs to the connection (RFC 9110 7.6.1), and a length, which such a response must not have (8.6).
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

/// How many came before a response, and how large they were.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    responses: u32,
    bytes: usize,
}

impl Budget {
    /// Counts one whose headers take so many bytes; whether it is within the bounds.
    pub(crate) fn admits(&mut self, bytes: usize) -> bool {
        self.responses += 1;
        self.bytes += bytes;
        self.responses <= MOST && self.bytes <= MOST_BYTES
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
    fn those_that_come_while_a_call_is_polled_are_its_own_and_others_are_dropped() {
        came(hints(&[("link", "outside")]));
        let (polled, seen) = during(|| {
            came(hints(&[("link", "outer")]));
            let ((), inner) = during(|| came(hints(&[("link", "inner")])));
            assert_eq!(inner[0].headers()["link"], "inner");
            7
        });
        assert_eq!(
            (polled, seen.len(), &seen[0].headers()["link"]),
            (7, 1, &HeaderValue::from_static("outer"))
        );
        assert!(during(|| ()).1.is_empty());
    }

    #[test]
    fn nothing_of_the_connection_is_handed_over() {
        let ((), seen) = during(|| {
            came(hints(&[
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
    fn their_number_and_their_size_are_bounded() {
        let mut budget = Budget::default();
        assert!((0..MOST).all(|_| budget.admits(10)) && !budget.admits(10));
        let mut budget = Budget::default();
        assert!(budget.admits(MOST_BYTES) && !budget.admits(1));
    }
}
