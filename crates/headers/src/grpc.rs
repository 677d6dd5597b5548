use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};

/// Server-Sent Events.
const EVENTS: &[u8] = b"text/event-stream";
const GRPC: &[u8] = b"application/grpc";
/// The same for browsers: framed alike, with the trailers in the body.
const WEB: &[u8] = b"application/grpc-web";
/// That in base64.
pub const WEB_TEXT: &str = "application/grpc-web-text";

/// Whether these headers are those of a gRPC call: its content type is `application/grpc`, or that with a suffix. gRPC-Web is
/// none, as it has no trailers of HTTP.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| is(kind, GRPC))
}

/// Whether these headers are those of a call or a response of gRPC-Web.
pub fn is_grpc_web(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| is(kind, WEB) || is(kind, WEB_TEXT.as_bytes()))
}

/// Whether these headers are those of a response that goes on for as long as there are events: Server-Sent Events, or gRPC-Web.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return false };
    is(kind, EVENTS) || is(kind, WEB) || is(kind, WEB_TEXT.as_bytes())
}

/// The content type with which a call ends that no server answered, where its caller looks for `grpc-status` among the headers
/// of such an answer: the request's own, where that is one of gRPC or of gRPC-Web.
pub fn grpc_kind(headers: &HeaderMap) -> Option<HeaderValue> {
    match Caller::of(headers) {
        Caller::Http => None,
        Caller::Grpc(kind) | Caller::GrpcWeb(kind) => Some(kind),
    }
}

/// How whoever makes a call looks at its answer, and for gRPC the content type of both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// At its status.
    Http,
    /// At `grpc-status`, in trailers or, where there is no body, among the headers.
    Grpc(HeaderValue),
    /// The same within the body, or among the headers.
    GrpcWeb(HeaderValue),
}

impl Caller {
    /// Whose call this is.
    pub fn of(headers: &HeaderMap) -> Self {
        match headers.get(CONTENT_TYPE) {
            Some(kind) if is(kind, GRPC) => Self::Grpc(own(kind)),
            Some(kind) if is(kind, WEB) || is(kind, WEB_TEXT.as_bytes()) => Self::GrpcWeb(own(kind)),
            _ => Self::Http,
        }
    }

    /// Whether trailers of HTTP end its answers.
    pub fn is_grpc(&self) -> bool {
        matches!(self, Self::Grpc(_))
    }
}

/// The same content type; the usual ones share nothing with the request, so that its memory is not counted for each call.
fn own(kind: &HeaderValue) -> HeaderValue {
    const PROTO: &str = "application/grpc+proto";
    match kind.as_bytes() {
        GRPC => HeaderValue::from_static("application/grpc"),
        other if other == PROTO.as_bytes() => HeaderValue::from_static(PROTO),
        _ => kind.clone(),
    }
}

/// Whether a content type is this one, maybe with a suffix or parameters.
fn is(kind: &HeaderValue, base: &[u8]) -> bool {
    let rest = kind.as_bytes().strip_prefix(base);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Whether a gRPC status is a failure of the server's own: `UNKNOWN`, `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS`. That something
/// is not implemented, or took longer than the caller gave it, is not.
pub fn has_erred(code: &[u8]) -> bool {
    matches!(code, b"2" | b"13" | b"14" | b"15")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_events_are_told_from_other_responses() {
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
    fn each_form_of_grpc_is_told_from_the_others_and_from_what_is_none() {
        for (kind, grpc, answered) in [
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
            let answer = grpc_kind(&headers);
            assert_eq!(is_grpc(&headers), grpc, "{kind}");
            assert_eq!(answer.as_ref().map(|kind| kind.to_str().unwrap()), answered, "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()) && grpc_kind(&HeaderMap::new()).is_none());
    }
}
