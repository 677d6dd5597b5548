//! Parses response headers, as a client.

use std::{mem::MaybeUninit, ops::Range};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, Version, header};
use httparse::{Header, ParserConfig, Status};

use super::{
    Decoder, MAX_FIELDS, MAX_HEAD_BYTES, Malformed, has_connection_close, has_token, later_versions,
    normalize_length,
};
use crate::informational::Budget;

/// A received response: its headers, the framing of its body, and whether the connection can be reused.
#[derive(Debug)]
pub struct ReceivedResponse {
    /// Status, version and fields.
    pub head: Response<()>,
    /// Decodes the body.
    pub body: Decoder,
    /// Whether the connection may carry another message after the body.
    pub persistent: bool,
}

/// Finds the response in the bytes from a server, after any informational responses (RFC 9110 15.2).
#[derive(Debug)]
pub struct ResponseReader {
    request: RequestKind,
    /// Whether the request asked to switch protocols.
    may_switch: bool,
    /// Bytes of incomplete headers that were already searched for their end.
    searched: usize,
    informational: Budget,
    /// Called for each informational response other than 100 and 101.
    on_informational: fn(Response<()>),
}

/// The part of a request that decides whether its response has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Head,
    Connect,
    Other,
}

impl ResponseReader {
    /// A reader for the response to a request with this method.
    pub fn new(method: &Method) -> Self {
        let request = match *method {
            Method::HEAD => RequestKind::Head,
            Method::CONNECT => RequestKind::Connect,
            _ => RequestKind::Other,
        };
        Self {
            request,
            may_switch: false,
            searched: 0,
            informational: Budget::default(),
            on_informational: drop,
        }
    }

    /// Sets whether the request [asks to switch protocols](super::requests_upgrade). If not, a 101 is rejected, since
    /// both sides would disagree on what the connection carries.
    #[must_use]
    pub fn switching(self, may_switch: bool) -> Self {
        Self { may_switch, ..self }
    }

    /// Sets the handler of informational responses other than 100 and 101. By default they are dropped.
    #[must_use]
    pub fn informing(self, on_informational: fn(Response<()>)) -> Self {
        Self { on_informational, ..self }
    }

    /// Whether no informational response was read yet.
    pub fn has_read_nothing(&self) -> bool {
        self.informational.is_unused()
    }

    /// Splits the headers of the response off `input`. Returns `None` if they are incomplete.
    ///
    /// # Errors
    /// Malformed headers, ambiguous framing of the body, or chunks in `input` that are already malformed: nothing was
    /// forwarded yet, so the whole call can fail.
    pub fn read(&mut self, input: &mut BytesMut) -> Result<Option<ReceivedResponse>, Malformed> {
        while let Some((mut head, size)) = self.head(input)? {
            self.searched = 0;
            // After 101 the connection speaks another protocol, so no other response follows.
            if !head.status().is_informational() || head.status() == StatusCode::SWITCHING_PROTOCOLS {
                if head.status() == StatusCode::SWITCHING_PROTOCOLS && !self.may_switch {
                    return Err(Malformed(
                        "a response switches protocols, which the request did not ask for",
                    ));
                }
                let body = framing(&mut head, self.request)?;
                body.check(input)?;
                let persistent =
                    self.request != RequestKind::Connect && !body.is_until_close() && persists(&head);
                return Ok(Some(ReceivedResponse { head, body, persistent }));
            }
            if !self.informational.admits(size) {
                return Err(Malformed("more than 32 responses of status 1xx, or 64 KiB of them"));
            }
            if head.status() != StatusCode::CONTINUE {
                (self.on_informational)(head);
            }
        }
        Ok(None)
    }

    /// Parses the headers of one response. Returns them with their length in bytes.
    fn head(&mut self, input: &mut BytesMut) -> Result<Option<(Response<()>, usize)>, Malformed> {
        // Headers that arrive byte by byte are not parsed again for each byte.
        if self.searched > 0 && !has_end(&input[self.searched.saturating_sub(2)..]) {
            return self.incomplete(input);
        }
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut found = httparse::Response::new(&mut []);
        // Some servers write a space before the colon, which a proxy must remove (RFC 9112 5.1).
        let mut config = ParserConfig::default();
        config.allow_spaces_after_header_name_in_responses(true);
        let parsed = config.parse_response_with_uninit_headers(&mut found, input, &mut fields);
        let length = match parsed {
            Ok(Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
            Ok(Status::Complete(_)) => return Err(Malformed("the headers are longer than 64 KiB")),
            Ok(Status::Partial) => return self.incomplete(input),
            Err(httparse::Error::Version) if later_versions::lower(input, 0) => return self.head(input),
            Err(error) => return Err(parse_error(error)),
        };
        let mut head = Response::new(());
        let status = found.code.and_then(|code| StatusCode::from_u16(code).ok());
        *head.status_mut() = status.ok_or(Malformed("the status is below 100"))?;
        *head.version_mut() = if found.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let count = found.headers.len();
        let mut offsets = [FieldOffsets::default(); MAX_FIELDS];
        for (offset, field) in offsets.iter_mut().zip(&*found.headers) {
            *offset = FieldOffsets::of(field, input);
        }
        let text = input.split_to(length).freeze();
        let headers = head.headers_mut();
        headers.reserve(count);
        for offset in &offsets[..count] {
            let (name, value) = offset.read(&text)?;
            headers.append(name, value);
        }
        Ok(Some((head, length)))
    }

    fn incomplete<T>(&mut self, input: &BytesMut) -> Result<Option<T>, Malformed> {
        self.searched = input.len();
        if input.len() > MAX_HEAD_BYTES {
            return Err(Malformed("the headers are longer than 64 KiB"));
        }
        Ok(None)
    }
}

/// Whether these bytes contain an empty line, which ends headers.
pub(super) fn has_end(bytes: &[u8]) -> bool {
    let ends = |(at, byte): (usize, &u8)| {
        *byte == b'\n' && matches!(&bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..])
    };
    bytes.iter().enumerate().any(ends)
}

/// Offsets of a field within the headers. Values share the memory of the headers, which the parser and the buffer
/// cannot both borrow.
#[derive(Clone, Copy, Default)]
pub(super) struct FieldOffsets {
    name: (u16, u16),
    value: (u16, u16),
}

impl FieldOffsets {
    /// Returns the offsets of a field found in `head`. The caller has checked that offsets fit 16 bits.
    pub(super) fn of(field: &Header<'_>, head: &BytesMut) -> Self {
        let offset = |part: &[u8]| {
            let range = Self::range_in(part, head);
            (range.start as u16, range.end as u16)
        };
        Self { name: offset(field.name.as_bytes()), value: offset(field.value) }
    }

    /// Returns the range of a part within the headers.
    pub(super) fn range_in(part: &[u8], head: &BytesMut) -> Range<usize> {
        let from = part.as_ptr() as usize - head.as_ptr() as usize;
        from..from + part.len()
    }

    pub(super) fn read(&self, head: &Bytes) -> Result<(HeaderName, HeaderValue), Malformed> {
        let range = |(from, to): (u16, u16)| usize::from(from)..usize::from(to);
        let name = HeaderName::from_bytes(&head[range(self.name)]);
        let value = HeaderValue::from_maybe_shared(head.slice(range(self.value)));
        match (name, value) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            (Err(_), _) => Err(Malformed("the name of a header")),
            (_, Err(_)) => Err(Malformed("the value of a header")),
        }
    }
}

pub(super) fn parse_error(error: httparse::Error) -> Malformed {
    Malformed(match error {
        httparse::Error::HeaderName => "the name of a header",
        httparse::Error::HeaderValue => "the value of a header",
        httparse::Error::NewLine => "the end of a line",
        httparse::Error::Status => "the status",
        httparse::Error::Token => "a token",
        httparse::Error::TooManyHeaders => "more than 128 headers",
        httparse::Error::Version => "the version",
    })
}

/// Determines the framing of the body (RFC 9112 6.3). Rewrites `content-length` as a single number, or removes it if it
/// is ambiguous and frames nothing.
fn framing(head: &mut Response<()>, request: RequestKind) -> Result<Decoder, Malformed> {
    let status = head.status();
    let length = normalize_length(head.headers_mut());
    let bodiless =
        matches!(status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if bodiless || request == RequestKind::Head || (request == RequestKind::Connect && status.is_success()) {
        if length.is_err() {
            head.headers_mut().remove(header::CONTENT_LENGTH);
        }
        return Ok(Decoder::absent());
    }
    let length = length?;
    let mut codings = head.headers().get_all(header::TRANSFER_ENCODING).into_iter();
    let Some(coding) = codings.next() else {
        return Ok(length.map_or_else(Decoder::until_close, Decoder::length));
    };
    // With both framings present, an intermediary may have used the other one (RFC 9112 6.3, request smuggling).
    if length.is_some() {
        return Err(Malformed("both a content-length and a transfer-encoding"));
    }
    if head.version() == Version::HTTP_10 {
        return Err(Malformed("a transfer-encoding in HTTP/1.0"));
    }
    if codings.next().is_some() || !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
        return Err(Malformed("a transfer-encoding other than chunked"));
    }
    Ok(Decoder::chunked())
}

fn persists(head: &Response<()>) -> bool {
    let headers = head.headers();
    let by_default = head.version() == Version::HTTP_11;
    head.status() != StatusCode::SWITCHING_PROTOCOLS
        && !has_connection_close(headers)
        && (by_default || has_token(headers, header::CONNECTION, b"keep-alive"))
}
