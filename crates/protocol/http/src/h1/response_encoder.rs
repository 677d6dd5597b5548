//! Writes the headers of responses, and decides the framing of their bodies.

use http::{HeaderMap, Method, Request, StatusCode, Version, header};

use super::{Framing, end_headers, has_token, parse_length, write_field, write_number};

/// Properties of the request that determine how its response is written.
#[derive(Clone, Copy, Debug)]
pub struct ResponseContext {
    /// The method is HEAD: only headers are sent.
    is_head: bool,
    /// The method is CONNECT: a tunnel is requested.
    is_connect: bool,
    /// The client speaks HTTP/1.0, which has no chunked coding.
    is_http10: bool,
    /// The client accepts trailers.
    trailers: bool,
}

impl ResponseContext {
    /// Returns the context of this request.
    pub fn of(request: &Request<()>) -> Self {
        Self {
            is_head: *request.method() == Method::HEAD,
            is_connect: *request.method() == Method::CONNECT,
            is_http10: request.version() == Version::HTTP_10,
            trailers: has_token(request.headers(), header::TE, b"trailers"),
        }
    }

    /// Returns the context of a request that could not be parsed.
    pub fn unknown() -> Self {
        Self { is_head: false, is_connect: false, is_http10: false, trailers: false }
    }

    /// Whether a tunnel is requested.
    pub fn is_connect(self) -> bool {
        self.is_connect
    }

    /// Whether informational responses are sent. HTTP/1.0 has none (RFC 9110 15.2).
    pub fn allows_informational(self) -> bool {
        !self.is_http10
    }

    /// Whether the client accepts trailers (RFC 9110 6.5.1).
    pub fn accepts_trailers(self) -> bool {
        self.trailers
    }

    /// Whether a response with this status switches the connection to the requested protocol or tunnel.
    pub fn switches_protocol(self, status: StatusCode) -> bool {
        if self.is_connect { status.is_success() } else { status == StatusCode::SWITCHING_PROTOCOLS }
    }

    /// Whether the response has no body, whatever its headers say (RFC 9110 6.4.1).
    fn is_bodiless(self, status: StatusCode) -> bool {
        status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || self.switches_protocol(status)
    }
}

/// Writes the headers of a response and returns the framing of its body. `None` as the length means unknown. The
/// connection must be closed afterwards if the framing is `UntilClose` or `persistent` is false, unless the response
/// [switches_protocol](ResponseContext::switches_protocol). `date` returns the current time for responses without one
/// (RFC 9110 6.6.1). The caller has removed hop-by-hop headers.
pub fn write_response(
    out: &mut Vec<u8>,
    (status, headers): (StatusCode, &HeaderMap),
    context: ResponseContext,
    (length, persistent): (Option<u64>, bool),
    date: impl FnOnce() -> [u8; 29],
) -> Framing {
    write_status_line(out, status, context);
    let framing = framing(status, headers, context, length);
    let mut dated = false;
    let mut declared = None;
    for (name, value) in headers {
        match *name {
            header::CONTENT_LENGTH => declared = Some(value),
            header::CONNECTION | header::TRANSFER_ENCODING => {}
            // Only a chunked body can have trailers.
            header::TRAILER if framing != Framing::Chunked => {}
            _ => {
                dated |= *name == header::DATE;
                write_field(out, name, value.as_bytes());
            }
        }
    }
    if context.is_head && !context.is_bodiless(status) {
        // For HEAD, the length is the server's `content-length`, or otherwise that of the body that is not sent.
        match (declared, length) {
            (Some(declared), _) => write_field(out, &header::CONTENT_LENGTH, declared.as_bytes()),
            (None, Some(length @ 1..)) => write_number(out, &header::CONTENT_LENGTH, length),
            (None, _) => {}
        }
    }
    if !dated {
        write_field(out, &header::DATE, &date());
    }
    match context.switches_protocol(status) {
        true if context.is_connect => {}
        true => write_field(out, &header::CONNECTION, b"upgrade"),
        false => write_connection(out, context, persistent && framing != Framing::UntilClose),
    }
    // Without a length, the client would wait for the end of the connection.
    let empty = framing == Framing::Absent && !context.is_head && !context.is_bodiless(status);
    end_headers(out, if empty { Framing::Length(0) } else { framing });
    framing
}

/// Writes an informational response (RFC 9110 15.2). The caller has removed hop-by-hop headers.
pub fn write_informational(out: &mut Vec<u8>, status: StatusCode, headers: &HeaderMap) {
    write_status_line(out, status, ResponseContext::unknown());
    for (name, value) in headers {
        write_field(out, name, value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the status line with the version of the request, as hyper does.
pub(super) fn write_status_line(out: &mut Vec<u8>, status: StatusCode, context: ResponseContext) {
    if status == StatusCode::OK && !context.is_http10 {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(if context.is_http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or("<none>").as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes `connection` where the version does not imply whether the connection persists.
fn write_connection(out: &mut Vec<u8>, context: ResponseContext, persistent: bool) {
    match (context.is_http10, persistent) {
        (false, true) | (true, false) => {}
        (false, false) => write_field(out, &header::CONNECTION, b"close"),
        (true, true) => write_field(out, &header::CONNECTION, b"keep-alive"),
    }
}

fn framing(
    status: StatusCode,
    headers: &HeaderMap,
    context: ResponseContext,
    length: Option<u64>,
) -> Framing {
    if context.is_head || context.is_bodiless(status) {
        return Framing::Absent;
    }
    // The response of an HTTP/2 server may declare its length in the headers only.
    let declared = || headers.get(header::CONTENT_LENGTH).and_then(|length| parse_length(length.as_bytes()));
    match length.or_else(declared) {
        Some(0) => Framing::Absent,
        Some(length) => Framing::Length(length),
        None if context.is_http10 => Framing::UntilClose,
        None => Framing::Chunked,
    }
}
