//! Responses of the proxy itself.

use std::fmt::Write as _;

use fairmesh_calls::{Body, Fault, FaultKind};
use fairmesh_headers::{FAULT, GRPC_STATUS};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};

/// Returns the response for a fault. `grpc` is the content type of a gRPC request, whose response carries a gRPC
/// status. Any other response carries an HTTP status. Both contain the message.
pub fn from_fault(fault: &Fault, grpc: Option<HeaderValue>) -> Response<Body> {
    let kind = fault.kind();
    let mut response = match grpc {
        Some(grpc) => grpc_trailers_only(grpc, kind.grpc_code(), &fault.to_string()),
        None => plain_text(kind.http_status(), format!("{fault}\n")),
    };
    response.headers_mut().insert(FAULT, HeaderValue::from_static(kind.label()));
    if let Some(wait) = fault.retry_after() {
        // Rounded up to seconds (RFC 9110 10.2.3), so that no client retries too early.
        let seconds = wait.as_nanos().div_ceil(1_000_000_000);
        response.headers_mut().insert(header::RETRY_AFTER, u64::try_from(seconds).unwrap_or(u64::MAX).into());
    }
    response
}

/// The response to a request whose body exceeds `max` bytes.
pub fn body_too_large(max: u64, grpc: Option<HeaderValue>) -> Response<Body> {
    let message = format!("the request body exceeds {max} bytes, the proxy's maximum (--max-body)");
    from_fault(&Fault::new(FaultKind::TooLarge, message), grpc)
}

/// Returns the response to a request that the proxy forwarded to itself. `remedy` says how the loop arose and what to
/// change.
pub(crate) fn loop_detected(remedy: &'static str, grpc: Option<HeaderValue>) -> Response<Body> {
    from_fault(&Fault::new(FaultKind::Loop, remedy), grpc)
}

/// A response with a plain-text body.
pub fn plain_text(status: StatusCode, message: String) -> Response<Body> {
    let mut response = Response::new(Body::from(message));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

/// Returns a response of headers only (Trailers-Only), for gRPC and gRPC-Web.
pub(crate) fn grpc_trailers_only(content_type: HeaderValue, code: i32, message: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(GRPC_STATUS, code.into());
    // The percent-encoded text is a valid header value.
    if let Ok(message) = percent_encoded(message).try_into() {
        headers.insert(HeaderName::from_static("grpc-message"), message);
    }
    response
}

/// Percent-encodes a message as gRPC over HTTP/2 requires: all bytes except printable ASCII, and `%`.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn mesh_faults_become_http_or_grpc_error_responses() {
        let fault = Fault::new(FaultKind::NoEndpoints, "no endpoint serves 100 % of it\nnow");
        let plain = from_fault(&fault, None);
        let kind = || Some(HeaderValue::from_static("application/grpc-web+proto"));
        assert_eq!(
            (plain.status(), &plain.headers()[FAULT]),
            (StatusCode::SERVICE_UNAVAILABLE, &"no_endpoints".parse().unwrap())
        );
        let grpc = from_fault(&fault, kind());
        assert_eq!(grpc.headers()[header::CONTENT_TYPE], "application/grpc-web+proto");
        assert_eq!(grpc.status(), StatusCode::OK);
        assert_eq!(grpc.headers()[GRPC_STATUS], "14");
        assert_eq!(grpc.headers()["grpc-message"], "no endpoint serves 100 %25 of it%0Anow");
        let limited =
            Fault::new(FaultKind::RateLimited, "later").with_retry_after(Duration::from_millis(1001));
        let (plain, grpc) = (from_fault(&limited, None), from_fault(&limited, kind()));
        assert_eq!(
            (plain.status(), &plain.headers()["retry-after"]),
            (StatusCode::TOO_MANY_REQUESTS, &"2".parse().unwrap())
        );
        assert_eq!(grpc.headers()[GRPC_STATUS], "8");
    }
}
