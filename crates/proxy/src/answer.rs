//! What a program is told where no server answered.

use std::fmt::Write as _;

use fairmesh_client::{Body, Fault};
use fairmesh_headers::{self, FAULT};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};

/// What gRPC says of messages that are too large.
const RESOURCE_EXHAUSTED: i32 = 8;

/// A fault as an answer: callers of gRPC, whose answers are of this content type, get its status, the others one of HTTP, and
/// both the words.
pub(crate) fn of_fault(fault: &Fault, grpc: Option<HeaderValue>) -> Response<Body> {
    let kind = fault.kind();
    let mut answer = match grpc {
        Some(grpc) => of_grpc(grpc, kind.grpc_code() as i32, &fault.to_string()),
        None => of_http(kind.http_status(), format!("{fault}\n")),
    };
    answer.headers_mut().insert(FAULT, HeaderValue::from_static(kind.label()));
    if let Some(wait) = fault.retry_after() {
        // Whole seconds (RFC 9110 10.2.3), and no caller comes back too early.
        let seconds = wait.as_nanos().div_ceil(1_000_000_000);
        answer.headers_mut().insert(header::RETRY_AFTER, u64::try_from(seconds).unwrap_or(u64::MAX).into());
    }
    answer
}

/// Of a request whose body is longer than `most` bytes.
pub(crate) fn of_too_large(most: u64, grpc: Option<HeaderValue>) -> Response<Body> {
    let words = format!("the request's body is longer than {most} bytes, which is what the proxy passes on");
    let mut answer = match grpc {
        Some(grpc) => of_grpc(grpc, RESOURCE_EXHAUSTED, &words),
        None => of_http(StatusCode::PAYLOAD_TOO_LARGE, format!("{words}\n")),
    };
    answer.headers_mut().insert(FAULT, HeaderValue::from_static("too_large"));
    answer
}

/// An answer with a status and words.
pub(crate) fn of_http(status: StatusCode, words: String) -> Response<Body> {
    let mut answer = Response::new(Body::from(words));
    *answer.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, text);
    answer
}

/// An answer that is over with its head, as gRPC has it, and gRPC-Web too.
fn of_grpc(content_type: HeaderValue, code: i32, words: &str) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(fairmesh_headers::GRPC_STATUS, code.into());
    // Percent-encoded, it holds only what a header may.
    if let Ok(message) = percent_encoded(words).try_into() {
        headers.insert(HeaderName::from_static("grpc-message"), message);
    }
    answer
}

/// As the gRPC protocol over HTTP/2 wants messages: printable ASCII but `%`.
fn percent_encoded(words: &str) -> String {
    let mut encoded = String::with_capacity(words.len());
    for byte in words.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_client::FaultKind;

    use super::*;

    #[test]
    fn each_caller_is_told_in_its_own_words() {
        let fault = Fault::new(FaultKind::NoEndpoints, "nobody serves 100 % of it\nnow");
        let plain = of_fault(&fault, None);
        let kind = || Some(HeaderValue::from_static("application/grpc-web+proto"));
        assert_eq!(
            (plain.status(), &plain.headers()[FAULT]),
            (StatusCode::SERVICE_UNAVAILABLE, &"no_endpoints".parse().unwrap())
        );
        let grpc = of_fault(&fault, kind());
        assert_eq!(grpc.headers()[header::CONTENT_TYPE], "application/grpc-web+proto");
        assert_eq!(grpc.status(), StatusCode::OK);
        assert_eq!(grpc.headers()[fairmesh_headers::GRPC_STATUS], "14");
        assert_eq!(grpc.headers()["grpc-message"], "nobody serves 100 %25 of it%0Anow");
        let limited =
            Fault::new(FaultKind::RateLimited, "later").with_retry_after(Duration::from_millis(1001));
        let (plain, grpc) = (of_fault(&limited, None), of_fault(&limited, kind()));
        assert_eq!(
            (plain.status(), &plain.headers()["retry-after"]),
            (StatusCode::TOO_MANY_REQUESTS, &"2".parse().unwrap())
        );
        assert_eq!(grpc.headers()[fairmesh_headers::GRPC_STATUS], "8");
    }
}
