//! 421 Misdirected Request (RFC 9110 15.5.20): the requested service is placed on other backends of the
//! gateway. The request is not processed, so it may be sent to another backend.

use std::fmt;

use fairmesh_calls::{Body, FaultKind, ServiceName};
use fairmesh_headers::FAULT;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::{
    forward::error_response::{grpc_trailers_only, plain_text},
    http1::request_handler::ClosesConnection,
};

/// Response header that names the service of a misdirected request, so that the node can look up its
/// backends.
const PLACED: HeaderName = HeaderName::from_static("x-fairmesh-placed");
/// Value of the fault header of a misdirected request.
const MISDIRECTED: &str = "misdirected";
/// Start of a 421 response over HTTP/1.1.
const STATUS_LINE: &[u8] = b"HTTP/1.1 421 ";
/// Maximum length of a response head that is searched for a 421, in bytes.
const MAX_HEAD: usize = 4096;

/// The services that one backend of a gateway serves.
pub trait ServedServices: fmt::Debug + Send + Sync {
    /// Whether a service is placed on this backend, or on no backend.
    fn serves(&self, service: &ServiceName) -> bool;
}

/// Classification of a response by its first bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstResponse {
    /// More bytes are needed.
    Incomplete,
    /// The request was not processed because its service is placed elsewhere. The service, if the response
    /// names one.
    Misdirected(Option<ServiceName>),
    /// Another response, or another protocol.
    Other,
}

/// Returns the response to a misdirected request. `grpc` is the content type of a gRPC request, which gets
/// `UNAVAILABLE`, because gRPC clients map 421 to an unknown error. Over HTTP/1.1 the connection closes, since the
/// node also repeats the requests that follow on it.
pub(crate) fn response(service: &ServiceName, grpc: Option<HeaderValue>) -> Response<Body> {
    let mut response = match grpc {
        Some(grpc) => grpc_trailers_only(grpc, FaultKind::Unavailable.grpc_code(), text(service).trim_end()),
        None => plain_text(StatusCode::MISDIRECTED_REQUEST, text(service)),
    };
    response.extensions_mut().insert(ClosesConnection);
    response.headers_mut().insert(FAULT, HeaderValue::from_static(MISDIRECTED));
    // A name is a valid header value.
    if let Ok(name) = HeaderValue::try_from(service.to_string()) {
        response.headers_mut().insert(PLACED, name);
    }
    response
}

/// Removes fields from a server's response that only the gateway may set: the node would send an already
/// processed request to another replica.
pub(crate) fn remove_claims(headers: &mut HeaderMap) {
    headers.remove(PLACED);
    let is_claim = |value: &HeaderValue| value.as_bytes().trim_ascii() == MISDIRECTED.as_bytes();
    if headers.get_all(FAULT).iter().any(is_claim) {
        headers.remove(FAULT);
    }
}

/// The misdirected response as HTTP/1.1 bytes, for a connection whose protocol is not known yet.
pub fn response_bytes(service: &ServiceName) -> Vec<u8> {
    let text = text(service);
    let length = text.len();
    format!(
        "HTTP/1.1 421 Misdirected Request\r\n{FAULT}: {MISDIRECTED}\r\n{PLACED}: {service}\r\ncontent-type: text/plain; \
         charset=utf-8\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
    )
    .into_bytes()
}

fn text(service: &ServiceName) -> String {
    format!("{service} is placed on other backends of the gateway\n")
}

/// Parses the first bytes of an HTTP/1.1 response.
pub fn read_first(bytes: &[u8]) -> FirstResponse {
    let begin = bytes.len().min(STATUS_LINE.len());
    if bytes[..begin] != STATUS_LINE[..begin] {
        return FirstResponse::Other;
    }
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if bytes.len() < MAX_HEAD { FirstResponse::Incomplete } else { FirstResponse::Other };
    };
    let head = String::from_utf8_lossy(&bytes[..end]);
    let field = |wanted: HeaderName| {
        let mut fields = head.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted.as_str()));
        found.map(|(_, value)| value.trim().to_owned())
    };
    match field(FAULT).as_deref() {
        Some(MISDIRECTED) => {
            FirstResponse::Misdirected(field(PLACED).and_then(|name| ServiceName::new(name).ok()))
        }
        _ => FirstResponse::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_header_misdirected_is_removed_from_server_responses() {
        let mut headers = response(&ServiceName::new("red/web").unwrap(), None).into_parts().0.headers;
        headers.append(FAULT, HeaderValue::from_static("overloaded"));
        headers.insert("server", HeaderValue::from_static("1"));
        remove_claims(&mut headers);
        assert!(!headers.contains_key(FAULT) && !headers.contains_key(PLACED));
        assert!(headers.contains_key("server"));
        headers.insert(FAULT, HeaderValue::from_static("overloaded"));
        remove_claims(&mut headers);
        assert_eq!(headers[FAULT], "overloaded", "other faults are forwarded");
    }

    #[test]
    fn misdirected_grpc_call_gets_status_unavailable() {
        let kind = Some(HeaderValue::from_static("application/grpc"));
        let response = response(&ServiceName::new("red/web").unwrap(), kind);
        assert_eq!(
            (response.status(), &response.headers()["grpc-status"]),
            (StatusCode::OK, &"14".parse().unwrap())
        );
        assert_eq!(
            (&response.headers()[FAULT], &response.headers()[PLACED]),
            (&MISDIRECTED.parse().unwrap(), &"red/web".parse().unwrap())
        );
    }

    #[test]
    fn misdirected_response_is_recognised_from_first_bytes() {
        let service = ServiceName::new("red/web").unwrap();
        let bytes = response_bytes(&service);
        assert_eq!(read_first(&bytes), FirstResponse::Misdirected(Some(service)));
        assert_eq!(read_first(b""), FirstResponse::Incomplete);
        assert_eq!(read_first(&bytes[..40]), FirstResponse::Incomplete);
        for other in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 421 Misdirected Request\r\n\r\n",
            b"PRI * HTTP/2.0",
            &[&b"HTTP/1.1 421 "[..], &[b'x'; MAX_HEAD]].concat(),
        ] {
            assert_eq!(read_first(other), FirstResponse::Other);
        }
        let nameless = b"HTTP/1.1 421 Misdirected Request\r\nX-Fairmesh-Fault:misdirected\r\n\r\n";
        assert_eq!(read_first(nameless), FirstResponse::Misdirected(None));
    }
}
