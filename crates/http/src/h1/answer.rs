//! The head of an answer.

use std::{mem::MaybeUninit, ops::Range};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, Version, header};
use httparse::{Header, ParserConfig, Status};

use super::{Decoder, MOST_FIELDS, MOST_HEAD, Malformed, content_length, has_word, says_close, version};
use crate::informational::Budget;

/// The head of an answer and what it says of the rest.
#[derive(Debug)]
pub struct Answer {
    /// Status, version and fields.
    pub head: Response<()>,
    /// Takes the body apart.
    pub body: Decoder,
    /// Whether the connection may carry another message once the body has ended.
    pub persistent: bool,
}

/// Finds the head of an answer in what a server sends, after those of informational responses (RFC 9110 15.2).
#[derive(Debug)]
pub struct HeadReader {
    asked: Asked,
    /// Whether the request asked for another protocol.
    may_switch: bool,
    /// How many bytes of an incomplete head were looked at.
    seen: usize,
    informational: Budget,
    /// What is done with informational responses other than 100 and 101.
    informs: fn(Response<()>),
}

/// What of a request decides whether the answer has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Head,
    Connect,
    Other,
}

impl HeadReader {
    /// For the answer to a request of this method.
    pub fn new(method: &Method) -> Self {
        let asked = match *method {
            Method::HEAD => Asked::Head,
            Method::CONNECT => Asked::Connect,
            _ => Asked::Other,
        };
        Self { asked, may_switch: false, seen: 0, informational: Budget::default(), informs: drop }
    }

    /// For the answer to a request that [asks for another protocol](super::says_upgrade), or does not: then one of status
    /// 101 would have both sides disagree on what the connection carries.
    #[must_use]
    pub fn switching(self, may_switch: bool) -> Self {
        Self { may_switch, ..self }
    }

    /// Does this with informational responses other than 100 and 101, which are else dropped.
    #[must_use]
    pub fn informing(self, informs: fn(Response<()>)) -> Self {
        Self { informs, ..self }
    }

    /// Takes a head out of what came so far; `None` where it is not complete.
    ///
    /// # Errors
    /// Where it will never be, where it leaves open where the body ends, or where what came of the body with it is not framed as it
    /// should be: nothing was sent on yet, so that the whole call can be said to have failed.
    pub fn read(&mut self, input: &mut BytesMut) -> Result<Option<Answer>, Malformed> {
        while let Some((head, size)) = self.head(input)? {
            self.seen = 0;
            // After 101 the connection speaks another protocol: that answer is the last.
            if !head.status().is_informational() || head.status() == StatusCode::SWITCHING_PROTOCOLS {
                if head.status() == StatusCode::SWITCHING_PROTOCOLS && !self.may_switch {
                    return Err(Malformed("another protocol, which the request did not ask for"));
                }
                let body = framing(&head, self.asked)?;
                body.check(input)?;
                let persistent = self.asked != Asked::Connect && !body.is_until_close() && persists(&head);
                return Ok(Some(Answer { head, body, persistent }));
            }
            if !self.informational.admits(size) {
                return Err(Malformed("more than 32 responses of status 1xx, or 64 KiB of them"));
            }
            if head.status() != StatusCode::CONTINUE {
                (self.informs)(head);
            }
        }
        Ok(None)
    }

    /// A head, and its length in bytes.
    fn head(&mut self, input: &mut BytesMut) -> Result<Option<(Response<()>, usize)>, Malformed> {
        // A head that comes byte by byte must not be parsed as often.
        if self.seen > 0 && !has_end(&input[self.seen.saturating_sub(2)..]) {
            return self.incomplete(input);
        }
        let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
        let mut found = httparse::Response::new(&mut []);
        let parsed =
            ParserConfig::default().parse_response_with_uninit_headers(&mut found, input, &mut fields);
        let length = match parsed {
            Ok(Status::Complete(length)) if length <= MOST_HEAD => length,
            Ok(Status::Complete(_)) => return Err(Malformed("the head is longer than 64 KiB")),
            Ok(Status::Partial) => return self.incomplete(input),
            Err(httparse::Error::Version) if version::lower(input, 0) => return self.head(input),
            Err(error) => return Err(refused(error)),
        };
        let mut head = Response::new(());
        let status = found.code.and_then(|code| StatusCode::from_u16(code).ok());
        *head.status_mut() = status.ok_or(Malformed("the status is below 100"))?;
        *head.version_mut() = if found.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let count = found.headers.len();
        let mut places = [Place::default(); MOST_FIELDS];
        for (place, field) in places.iter_mut().zip(&*found.headers) {
            *place = Place::of(field, input);
        }
        let text = input.split_to(length).freeze();
        let headers = head.headers_mut();
        headers.reserve(count);
        for place in &places[..count] {
            let (name, value) = place.read(&text)?;
            headers.append(name, value);
        }
        Ok(Some((head, length)))
    }

    fn incomplete<T>(&mut self, input: &BytesMut) -> Result<Option<T>, Malformed> {
        self.seen = input.len();
        if input.len() > MOST_HEAD {
            return Err(Malformed("the head is longer than 64 KiB"));
        }
        Ok(None)
    }
}

/// Whether an empty line, which ends a head, is somewhere in these bytes.
pub(super) fn has_end(bytes: &[u8]) -> bool {
    let ends = |(at, byte): (usize, &u8)| {
        *byte == b'\n' && matches!(&bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..])
    };
    bytes.iter().enumerate().any(ends)
}

/// Where in a head a field lies. Values share the bytes of the head, which parser and buffer cannot both borrow.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    name: (u16, u16),
    value: (u16, u16),
}

impl Place {
    /// Of a field that was found in `head`. The caller has made sure that the head is no longer than 16 bits can tell.
    pub(super) fn of(field: &Header<'_>, head: &BytesMut) -> Self {
        let place = |part: &[u8]| {
            let range = Self::in_head(part, head);
            (range.start as u16, range.end as u16)
        };
        Self { name: place(field.name.as_bytes()), value: place(field.value) }
    }

    /// Where in a head one of its parts lies.
    pub(super) fn in_head(part: &[u8], head: &BytesMut) -> Range<usize> {
        let from = part.as_ptr() as usize - head.as_ptr() as usize;
        from..from + part.len()
    }

    pub(super) fn read(&self, head: &Bytes) -> Result<(HeaderName, HeaderValue), Malformed> {
        let range = |(from, to): (u16, u16)| usize::from(from)..usize::from(to);
        let name = HeaderName::from_bytes(&head[range(self.name)]);
        let value = HeaderValue::from_maybe_shared(head.slice(range(self.value)));
        match (name, value) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            (Err(_), _) => Err(Malformed("the name of a field")),
            (_, Err(_)) => Err(Malformed("the value of a field")),
        }
    }
}

pub(super) fn refused(error: httparse::Error) -> Malformed {
    Malformed(match error {
        httparse::Error::HeaderName => "the name of a field",
        httparse::Error::HeaderValue => "the value of a field",
        httparse::Error::NewLine => "the end of a line",
        httparse::Error::Status => "the status",
        httparse::Error::Token => "a word",
        httparse::Error::TooManyHeaders => "more than 128 fields",
        httparse::Error::Version => "the version",
    })
}

/// How the body is to be taken apart (RFC 9112 6.3).
fn framing(head: &Response<()>, asked: Asked) -> Result<Decoder, Malformed> {
    let status = head.status();
    let bodiless =
        matches!(status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if bodiless || asked == Asked::Head || (asked == Asked::Connect && status.is_success()) {
        return Ok(Decoder::absent());
    }
    let length = content_length(head.headers())?;
    let mut codings = head.headers().get_all(header::TRANSFER_ENCODING).into_iter();
    let Some(coding) = codings.next() else {
        return Ok(length.map_or_else(Decoder::until_close, Decoder::length));
    };
    // Of two framings, a reader on the way may have believed the other one.
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
        && !says_close(headers)
        && (by_default || has_word(headers, header::CONNECTION, b"keep-alive"))
}
