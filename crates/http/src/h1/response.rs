//! An answer on its way out: its head, and how its body is framed.

use http::{HeaderMap, Method, Request, StatusCode, Version, header};

use super::{Framing, digits, end_head, field, has_word, number};

/// What of a request decides how it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Only the head is wanted.
    is_head: bool,
    /// A tunnel is wanted.
    is_connect: bool,
    /// The client speaks HTTP/1.0: it knows no chunks.
    is_old: bool,
    /// The client reads trailers.
    trailers: bool,
}

impl Asked {
    /// By this request.
    pub fn by(request: &Request<()>) -> Self {
        Self {
            is_head: *request.method() == Method::HEAD,
            is_connect: *request.method() == Method::CONNECT,
            is_old: request.version() == Version::HTTP_10,
            trailers: has_word(request.headers(), header::TE, b"trailers"),
        }
    }

    /// By a request that could not be read.
    pub fn unknown() -> Self {
        Self { is_head: false, is_connect: false, is_old: false, trailers: false }
    }

    /// Whether a tunnel is asked for.
    pub fn is_connect(self) -> bool {
        self.is_connect
    }

    /// Whether informational responses are sent: not to HTTP/1.0, which has none (RFC 9110 15.2).
    pub fn takes_informational(self) -> bool {
        !self.is_old
    }

    /// Whether trailers of the answer are sent (RFC 9110 6.5.1).
    pub fn wants_trailers(self) -> bool {
        self.trailers
    }

    /// Whether an answer of this status is the last message: after it, the connection carries what was asked for.
    pub fn switches(self, status: StatusCode) -> bool {
        if self.is_connect { status.is_success() } else { status == StatusCode::SWITCHING_PROTOCOLS }
    }

    /// Whether the answer has no body, whatever it says of that (RFC 9110 6.4.1).
    fn has_no_body(self, status: StatusCode) -> bool {
        status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || self.switches(status)
    }
}

/// Writes the head of an answer whose body has this length, `None` where it is not known, and says how the body is framed.
/// Where that is by the end of the connection, or not `persistent`, it must be closed afterwards, unless it
/// [switches](Asked::switches). `date` is the time now, for answers that do not tell it (RFC 9110 6.6.1). The caller has taken
/// away what belongs to another connection.
pub fn response(
    out: &mut Vec<u8>,
    (status, headers): (StatusCode, &HeaderMap),
    asked: Asked,
    (length, persistent): (Option<u64>, bool),
    date: impl FnOnce() -> [u8; 29],
) -> Framing {
    status_line(out, status, asked);
    let framing = framing(status, headers, asked, length);
    let mut dated = false;
    let mut told = None;
    for (name, value) in headers {
        match *name {
            header::CONTENT_LENGTH => told = Some(value),
            header::CONNECTION | header::TRANSFER_ENCODING => {}
            // Only chunks can have any.
            header::TRAILER if framing != Framing::Chunked => {}
            _ => {
                dated |= *name == header::DATE;
                field(out, name, value.as_bytes());
            }
        }
    }
    if asked.is_head && !asked.has_no_body(status) {
        // Of what was only asked about, the length is what the server says of it, or that of what is not sent.
        match (told, length) {
            (Some(told), _) => field(out, &header::CONTENT_LENGTH, told.as_bytes()),
            (None, Some(length @ 1..)) => number(out, &header::CONTENT_LENGTH, length),
            (None, _) => {}
        }
    }
    if !dated {
        field(out, &header::DATE, &date());
    }
    match asked.switches(status) {
        true if asked.is_connect => {}
        true => field(out, &header::CONNECTION, b"upgrade"),
        false => connection(out, asked, persistent && framing != Framing::UntilClose),
    }
    // Without a length, a client would wait for the end of the connection.
    let empty = framing == Framing::Absent && !asked.is_head && !asked.has_no_body(status);
    end_head(out, if empty { Framing::Length(0) } else { framing });
    framing
}

/// Writes an informational response (RFC 9110 15.2), which is nothing but headers. The caller has taken away what belongs to another
/// connection.
pub fn informational(out: &mut Vec<u8>, status: StatusCode, headers: &HeaderMap) {
    status_line(out, status, Asked::unknown());
    for (name, value) in headers {
        field(out, name, value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Which version the client knows is which it is answered with, as hyper has it.
pub(super) fn status_line(out: &mut Vec<u8>, status: StatusCode, asked: Asked) {
    if status == StatusCode::OK && !asked.is_old {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(if asked.is_old { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or("<none>").as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Says whether the connection goes on, where the version does not.
fn connection(out: &mut Vec<u8>, asked: Asked, persistent: bool) {
    match (asked.is_old, persistent) {
        (false, true) | (true, false) => {}
        (false, false) => field(out, &header::CONNECTION, b"close"),
        (true, true) => field(out, &header::CONNECTION, b"keep-alive"),
    }
}

fn framing(status: StatusCode, headers: &HeaderMap, asked: Asked, length: Option<u64>) -> Framing {
    if asked.is_head || asked.has_no_body(status) {
        return Framing::Absent;
    }
    // A server of HTTP/2 may tell a length that is nowhere else.
    let told = || headers.get(header::CONTENT_LENGTH).and_then(|length| digits(length.as_bytes()));
    match length.or_else(told) {
        Some(0) => Framing::Absent,
        Some(length) => Framing::Length(length),
        None if asked.is_old => Framing::UntilClose,
        None => Framing::Chunked,
    }
}
