//! Parses request headers, as a server.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode, Version, header};
use httparse::{ParserConfig, Status};

use super::{
    Decoder, MAX_FIELDS, MAX_HEAD_BYTES, Malformed, has_connection_close, later_versions::lower_version,
    parse_length, request_target, requests_upgrade, response_head::FieldOffsets, response_head::has_end,
};
use crate::h2::PREFACE;

/// A received request: its headers, the framing of its body, and what may follow on the connection.
#[derive(Debug)]
pub struct ReceivedRequest {
    /// Method, target, version and fields.
    pub head: Request<()>,
    /// Decodes the body.
    pub body: Decoder,
    /// Whether the connection may carry another request.
    pub persistent: bool,
    /// Whether the client waits for 100 (Continue) before it sends its body.
    pub expects_continue: bool,
    /// Whether the connection may switch protocols after the response: the request is a CONNECT or an upgrade.
    pub may_switch: bool,
}

/// Why received bytes are not a request to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The bytes are the client preface of HTTP/2; none were consumed.
    #[error("HTTP/2")]
    Http2,
    /// The request is rejected.
    #[error("{why}")]
    Refused {
        /// Status of the response to send.
        status: StatusCode,
        /// What is wrong with the request.
        why: &'static str,
    },
}

/// Finds requests in the bytes from a client.
///
/// Rejects everything that hyper's server rejects. Also rejects requests that two servers could read differently, where
/// hyper takes the likelier reading: a length together with chunks, a transfer coding other than chunked, several
/// hosts, a CONNECT with a body, a target of no valid form or with a fragment.
#[derive(Debug, Default)]
pub struct RequestReader {
    /// Bytes of incomplete headers that were already searched for their end.
    searched: usize,
    /// Whether a request was read. The HTTP/2 preface is valid only at the beginning of a connection.
    begun: bool,
}

impl RequestReader {
    /// Splits the headers of a request off `input`. Returns `None` if they are incomplete.
    ///
    /// # Errors
    /// Malformed headers, ambiguous framing of the body, or another protocol.
    pub fn read(&mut self, input: &mut BytesMut) -> Result<Option<ReceivedRequest>, RequestError> {
        if !self.begun && !input.is_empty() {
            let both = input.len().min(PREFACE.len());
            if input[..both] == PREFACE[..both] {
                return if both == PREFACE.len() { Err(RequestError::Http2) } else { Ok(None) };
            }
        }
        // Headers that arrive byte by byte are not parsed again for each byte.
        if self.searched > 0 && !has_end(&input[self.searched.saturating_sub(2)..]) {
            return self.incomplete(input);
        }
        if input.is_empty() { Ok(None) } else { self.parse(input) }
    }

    fn parse(&mut self, input: &mut BytesMut) -> Result<Option<ReceivedRequest>, RequestError> {
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut found = httparse::Request::new(&mut []);
        let parsed =
            ParserConfig::default().parse_request_with_uninit_headers(&mut found, input, &mut fields);
        let length = match parsed {
            Ok(Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
            Ok(Status::Complete(_)) => return Err(TOO_LONG),
            Ok(Status::Partial) => return self.incomplete(input),
            Err(httparse::Error::Version) if lower_version(input) => return self.parse(input),
            Err(error) => return Err(parse_error(error)),
        };
        let (Some(method), Some(target), Some(version)) = (found.method, found.path, found.version) else {
            return Err(bad("the request line"));
        };
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| bad("the method"))?;
        let target = FieldOffsets::range_in(target.as_bytes(), input);
        let count = found.headers.len();
        let mut offsets = [FieldOffsets::default(); MAX_FIELDS];
        for (offset, field) in offsets.iter_mut().zip(&*found.headers) {
            *offset = FieldOffsets::of(field, input);
        }
        let text = input.split_to(length).freeze();
        let mut head = Request::new(());
        *head.uri_mut() =
            request_target::read(&method, (&text, target), head.extensions_mut()).map_err(bad)?;
        *head.method_mut() = method;
        *head.version_mut() = if version == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
        (self.searched, self.begun) = (0, true);
        build_request(head, &text, &offsets[..count]).map(Some)
    }

    /// Records that a request was read by another reader.
    pub fn note_request(&mut self) {
        self.begun = true;
    }

    /// Whether a request was read.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    fn incomplete(&mut self, input: &BytesMut) -> Result<Option<ReceivedRequest>, RequestError> {
        self.searched = input.len();
        if input.len() > MAX_HEAD_BYTES { Err(TOO_LONG) } else { Ok(None) }
    }
}

const TOO_LONG: RequestError = RequestError::Refused {
    status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    why: "the headers are longer than 64 KiB",
};

const fn bad(why: &'static str) -> RequestError {
    RequestError::Refused { status: StatusCode::BAD_REQUEST, why }
}

fn parse_error(error: httparse::Error) -> RequestError {
    match error {
        httparse::Error::TooManyHeaders => {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            RequestError::Refused { status, why: "more than 128 headers" }
        }
        httparse::Error::HeaderName => bad("the name of a header"),
        httparse::Error::HeaderValue => bad("the value of a header"),
        httparse::Error::NewLine => bad("the end of a line"),
        httparse::Error::Version => bad("the version"),
        httparse::Error::Status | httparse::Error::Token => bad("the request line"),
    }
}

/// Builds a request whose fields lie at these offsets of its text.
fn build_request(
    mut head: Request<()>,
    text: &Bytes,
    offsets: &[FieldOffsets],
) -> Result<ReceivedRequest, RequestError> {
    let mut framing = MessageHeaders::default();
    let headers = head.headers_mut();
    headers.reserve(offsets.len());
    for offset in offsets {
        let (name, value) = offset.read(text).map_err(|Malformed(why)| bad(why))?;
        if framing.note(&name, &value)? {
            headers.append(name, value);
        }
    }
    framing.finish(head)
}

/// Headers about the whole message, noted while the fields are read. Looking them up afterwards would cost a hash each.
#[derive(Default)]
struct MessageHeaders {
    length: Option<u64>,
    codings: u32,
    chunked: bool,
    hosts: u32,
    connection: bool,
    upgrade: bool,
    expects_continue: bool,
}

impl MessageHeaders {
    /// Returns whether the field is kept; a repeated length is not.
    fn note(&mut self, name: &http::HeaderName, value: &http::HeaderValue) -> Result<bool, RequestError> {
        match *name {
            header::CONTENT_LENGTH => {
                // A list of lengths is rejected, as by hyper: the upstream may not know that the header can be a list
                // (RFC 9110 8.6).
                let length = parse_length(value.as_bytes())
                    .ok_or(bad("content-length is not a number up to 2^63 - 1"))?;
                if self.length.is_some_and(|known| known != length) {
                    return Err(bad("two values of content-length differ"));
                }
                return Ok(self.length.replace(length).is_none());
            }
            header::TRANSFER_ENCODING => {
                self.codings += 1;
                self.chunked = value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
            }
            header::HOST => self.hosts += 1,
            header::CONNECTION => self.connection = true,
            header::UPGRADE => self.upgrade = true,
            header::EXPECT => {
                self.expects_continue = value.as_bytes().eq_ignore_ascii_case(b"100-continue");
            }
            _ => {}
        }
        Ok(true)
    }

    /// Completes the request with the framing of its body (RFC 9112 6.3).
    fn finish(self, head: Request<()>) -> Result<ReceivedRequest, RequestError> {
        let is_http10 = head.version() == Version::HTTP_10;
        let body = match (self.codings, self.length) {
            (0, length) => length.map_or_else(Decoder::absent, Decoder::length),
            (_, Some(_)) => return Err(bad("both a content-length and a transfer-encoding")),
            (1, None) if self.chunked && !is_http10 => Decoder::chunked(),
            (_, None) if is_http10 => return Err(bad("a transfer-encoding in HTTP/1.0")),
            (_, None) => {
                let why = "a transfer-encoding other than chunked";
                return Err(RequestError::Refused { status: StatusCode::NOT_IMPLEMENTED, why });
            }
        };
        if self.hosts > 1 {
            return Err(bad("more than one host"));
        }
        let is_connect = *head.method() == Method::CONNECT;
        // A CONNECT has no body (RFC 9110 9.3.6). Bytes that another parser takes for a body would be sent into the
        // tunnel.
        if is_connect && !body.is_done() {
            return Err(bad("a CONNECT with a body"));
        }
        let persistent = match self.connection {
            true => persists(head.headers(), is_http10),
            false => !is_http10,
        };
        // Without a body there is nothing to wait for, and HTTP/1.0 does not define `expect` (RFC 9110 10.1.1).
        let expects_continue = self.expects_continue && !is_http10 && !body.is_done();
        // HTTP/1.0 cannot switch protocols (RFC 9110 7.8).
        let may_switch = is_connect || (self.upgrade && !is_http10 && requests_upgrade(head.headers()));
        Ok(ReceivedRequest { head, body, persistent, expects_continue, may_switch })
    }
}

fn persists(headers: &HeaderMap, is_http10: bool) -> bool {
    !has_connection_close(headers)
        && (!is_http10 || super::has_token(headers, header::CONNECTION, b"keep-alive"))
}
