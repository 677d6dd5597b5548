use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};

/// Content type of Server-Sent Events.
const EVENTS: &[u8] = b"text/event-stream";
const GRPC: &[u8] = b"application/grpc";
/// Content type of gRPC-Web: gRPC framing with the trailers in the body.
const WEB: &[u8] = b"application/grpc-web";
/// Content type of gRPC-Web in base64.
pub const WEB_TEXT: &str = "application/grpc-web-text";

/// Whether these are the headers of a gRPC call: the content type is `application/grpc`, perhaps with a suffix.
/// gRPC-Web does not count, as it has no HTTP trailers.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| is(kind, GRPC))
}

/// Whether these are the headers of a gRPC-Web call or response.
pub fn is_grpc_web(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| is(kind, WEB) || is(kind, WEB_TEXT.as_bytes()))
}

/// Whether these are the headers of a response that lasts as long as events arrive: Server-Sent Events or gRPC-Web.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return false };
    is(kind, EVENTS) || is(kind, WEB) || is(kind, WEB_TEXT.as_bytes())
}

/// Returns the content type for a response made without a server, so that gRPC callers read `grpc-status` from its
/// headers: the content type of the request if that is gRPC or gRPC-Web, otherwise `None`.
pub fn grpc_content_type(headers: &HeaderMap) -> Option<HeaderValue> {
    match CallerProtocol::of(headers) {
        CallerProtocol::Http => None,
        CallerProtocol::Grpc(kind) | CallerProtocol::GrpcWeb(kind) => Some(kind),
    }
}

/// How a caller reads the outcome of a call. Holds the content type for gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerProtocol {
    /// From the HTTP status.
    Http,
    /// From `grpc-status` in the trailers or, if there is no body, in the headers.
    Grpc(HeaderValue),
    /// From `grpc-status` within the body or in the headers.
    GrpcWeb(HeaderValue),
}

impl CallerProtocol {
    /// Returns the protocol of a request or response with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        match headers.get(CONTENT_TYPE) {
            Some(kind) if is(kind, GRPC) => Self::Grpc(without_sharing(kind)),
            Some(kind) if is(kind, WEB) || is(kind, WEB_TEXT.as_bytes()) => {
                Self::GrpcWeb(without_sharing(kind))
            }
            _ => Self::Http,
        }
    }

    /// Whether HTTP trailers end responses in this protocol.
    pub fn is_grpc(&self) -> bool {
        matches!(self, Self::Grpc(_))
    }
}

/// Returns a copy of the content type. Copies of common types do not share the request's memory, so that no reference
/// count is touched per call.
fn without_sharing(kind: &HeaderValue) -> HeaderValue {
    const PROTO: &str = "application/grpc+proto";
    match kind.as_bytes() {
        GRPC => HeaderValue::from_static("application/grpc"),
        other if other == PROTO.as_bytes() => HeaderValue::from_static(PROTO),
        _ => kind.clone(),
    }
}

/// Whether a content type is `base`, perhaps with a suffix or parameters.
fn is(kind: &HeaderValue, base: &[u8]) -> bool {
    let rest = kind.as_bytes().strip_prefix(base);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Whether a gRPC status is a server error: `UNKNOWN`, `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS`. `UNIMPLEMENTED` and
/// `DEADLINE_EXCEEDED` are not.
pub fn is_server_error(code: &[u8]) -> bool {
    matches!(code, b"2" | b"13" | b"14" | b"15")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_stream_responses_are_recognised_by_content_type() {
        for (kind, is_stream) in [
            ("text/event-stream; charset=utf-8", true),
            ("application/grpc-web-text", true),
            ("application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(is_event_stream(&headers), is_stream, "{kind}");
        }
        assert!(!is_event_stream(&HeaderMap::new()));
    }

    #[test]
    fn grpc_and_grpc_web_are_distinguished() {
        for (kind, grpc, expected) in [
            ("application/grpc", true, Some("application/grpc")),
            ("application/grpc+proto", true, Some("application/grpc+proto")),
            ("application/grpc+json", true, Some("application/grpc+json")),
            ("application/grpc-web", false, Some("application/grpc-web")),
            ("application/grpc-web+proto", false, Some("application/grpc-web+proto")),
            ("application/grpc-web-text", false, Some("application/grpc-web-text")),
            ("application/grpc-web-text+proto", false, Some("application/grpc-web-text+proto")),
            ("application/grpc-webs", false, None),
            ("application/grpcs", false, None),
            ("application/json", false, None),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            let response = grpc_content_type(&headers);
            assert_eq!(is_grpc(&headers), grpc, "{kind}");
            assert_eq!(response.as_ref().map(|kind| kind.to_str().unwrap()), expected, "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()) && grpc_content_type(&HeaderMap::new()).is_none());
    }
}
