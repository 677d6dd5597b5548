//! The head of a request, as a server reads it.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode, Version, header};
use httparse::{ParserConfig, Status};

use super::{
    Decoder, MOST_FIELDS, MOST_HEAD, Malformed, answer::Place, answer::has_end, digits, says_close,
    says_upgrade, target, version::lower_version,
};
use crate::h2::PREFACE;

/// The head of a request and what it says of the rest.
#[derive(Debug)]
pub struct Received {
    /// Method, target, version and fields.
    pub head: Request<()>,
    /// Takes the body apart.
    pub body: Decoder,
    /// Whether the connection may carry another request.
    pub persistent: bool,
    /// Whether the client sends its body only once it was told to go on.
    pub expects_continue: bool,
    /// Whether the connection may carry something else than messages once this one is answered: it asks for a tunnel or for
    /// another protocol.
    pub may_switch: bool,
}

/// Why what came is no request that is served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// It begins HTTP/2, of which nothing was taken.
    #[error("HTTP/2")]
    Http2,
    /// It is refused.
    #[error("{why}")]
    Refused {
        /// The status of the answer that says so.
        status: StatusCode,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Finds the heads of requests in what a client sends.
///
/// It refuses all that hyper's server does, and what two servers could understand differently, of which hyper takes the
/// likelier reading: a length and chunks at once, a transfer coding besides chunks, several hosts, a CONNECT with a body, a target
/// of no form or with a fragment.
#[derive(Debug, Default)]
pub struct RequestReader {
    /// How many bytes of an incomplete head were looked at.
    seen: usize,
    /// Whether a request was read: HTTP/2 can only begin a connection.
    begun: bool,
}

impl RequestReader {
    /// Takes a head out of what came so far; `None` where it is not complete.
    ///
    /// # Errors
    /// Where it will never be, where it leaves open where the body ends, or where it is of another protocol.
    pub fn read(&mut self, input: &mut BytesMut) -> Result<Option<Received>, Unserved> {
        if !self.begun && !input.is_empty() {
            let both = input.len().min(PREFACE.len());
            if input[..both] == PREFACE[..both] {
                return if both == PREFACE.len() { Err(Unserved::Http2) } else { Ok(None) };
            }
        }
        // A head that comes byte by byte must not be parsed as often.
        if self.seen > 0 && !has_end(&input[self.seen.saturating_sub(2)..]) {
            return self.incomplete(input);
        }
        if input.is_empty() { Ok(None) } else { self.parse(input) }
    }

    fn parse(&mut self, input: &mut BytesMut) -> Result<Option<Received>, Unserved> {
        let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
        let mut found = httparse::Request::new(&mut []);
        let parsed =
            ParserConfig::default().parse_request_with_uninit_headers(&mut found, input, &mut fields);
        let length = match parsed {
            Ok(Status::Complete(length)) if length <= MOST_HEAD => length,
            Ok(Status::Complete(_)) => return Err(TOO_LONG),
            Ok(Status::Partial) => return self.incomplete(input),
            Err(httparse::Error::Version) if lower_version(input) => return self.parse(input),
            Err(error) => return Err(refused(error)),
        };
        let (Some(method), Some(target), Some(version)) = (found.method, found.path, found.version) else {
            return Err(bad("the request line"));
        };
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| bad("the method"))?;
        let target = Place::in_head(target.as_bytes(), input);
        let count = found.headers.len();
        let mut places = [Place::default(); MOST_FIELDS];
        for (place, field) in places.iter_mut().zip(&*found.headers) {
            *place = Place::of(field, input);
        }
        let text = input.split_to(length).freeze();
        let mut head = Request::new(());
        *head.uri_mut() = target::read(&method, (&text, target), head.extensions_mut()).map_err(bad)?;
        *head.method_mut() = method;
        *head.version_mut() = if version == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
        (self.seen, self.begun) = (0, true);
        received(head, &text, &places[..count]).map(Some)
    }

    /// A request was taken otherwise.
    pub fn passed(&mut self) {
        self.begun = true;
    }

    /// Whether a request was read.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    fn incomplete(&mut self, input: &BytesMut) -> Result<Option<Received>, Unserved> {
        self.seen = input.len();
        if input.len() > MOST_HEAD { Err(TOO_LONG) } else { Ok(None) }
    }
}

const TOO_LONG: Unserved = Unserved::Refused {
    status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    why: "the head is longer than 64 KiB",
};

const fn bad(why: &'static str) -> Unserved {
    Unserved::Refused { status: StatusCode::BAD_REQUEST, why }
}

fn refused(error: httparse::Error) -> Unserved {
    match error {
        httparse::Error::TooManyHeaders => {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            Unserved::Refused { status, why: "more than 128 fields" }
        }
        httparse::Error::HeaderName => bad("the name of a field"),
        httparse::Error::HeaderValue => bad("the value of a field"),
        httparse::Error::NewLine => bad("the end of a line"),
        httparse::Error::Version => bad("the version"),
        httparse::Error::Status | httparse::Error::Token => bad("the request line"),
    }
}

/// A request with the fields that lie at these places of its text.
fn received(mut head: Request<()>, text: &Bytes, places: &[Place]) -> Result<Received, Unserved> {
    let mut framing = Framing::default();
    let headers = head.headers_mut();
    headers.reserve(places.len());
    for place in places {
        let (name, value) = place.read(text).map_err(|Malformed(why)| bad(why))?;
        if framing.heed(&name, &value)? {
            headers.append(name, value);
        }
    }
    framing.received(head)
}

/// What fields say of the message as a whole, heeded while they are read: looking them up afterwards would cost a hash each.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    codings: u32,
    chunked: bool,
    hosts: u32,
    connection: bool,
    upgrade: bool,
    expects_continue: bool,
}

impl Framing {
    /// Whether the field is to be kept: a length that was told before is not.
    fn heed(&mut self, name: &http::HeaderName, value: &http::HeaderValue) -> Result<bool, Unserved> {
        match *name {
            header::CONTENT_LENGTH => {
                // No list, as hyper has it: whom it is passed on to may not know that a header may be one.
                let told =
                    digits(value.as_bytes()).ok_or(bad("the content-length is no number up to 2^63 - 1"))?;
                if self.length.is_some_and(|length| length != told) {
                    return Err(bad("two values of content-length differ"));
                }
                return Ok(self.length.replace(told).is_none());
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

    /// The request, with how its body is to be taken apart (RFC 9112 6.3).
    fn received(self, head: Request<()>) -> Result<Received, Unserved> {
        let is_old = head.version() == Version::HTTP_10;
        let body = match (self.codings, self.length) {
            (0, length) => length.map_or_else(Decoder::absent, Decoder::length),
            (_, Some(_)) => return Err(bad("both a content-length and a transfer-encoding")),
            (1, None) if self.chunked && !is_old => Decoder::chunked(),
            (_, None) if is_old => return Err(bad("a transfer-encoding in HTTP/1.0")),
            (_, None) => {
                let why = "a transfer-encoding other than chunked";
                return Err(Unserved::Refused { status: StatusCode::NOT_IMPLEMENTED, why });
            }
        };
        if self.hosts > 1 {
            return Err(bad("more than one host"));
        }
        let is_connect = *head.method() == Method::CONNECT;
        // It has none (RFC 9110 9.3.6): what others took for a body would be said in the tunnel.
        if is_connect && !body.is_done() {
            return Err(bad("a CONNECT with a body"));
        }
        let persistent = match self.connection {
            true => persists(head.headers(), is_old),
            false => !is_old,
        };
        // Without a body there is nothing to wait for, and HTTP/1.0 knows nothing of it (RFC 9110 10.1.1).
        let expects_continue = self.expects_continue && !is_old && !body.is_done();
        // HTTP/1.0 has no way to ask for another protocol (RFC 9110 7.8).
        let may_switch = is_connect || (self.upgrade && !is_old && says_upgrade(head.headers()));
        Ok(Received { head, body, persistent, expects_continue, may_switch })
    }
}

fn persists(headers: &HeaderMap, is_old: bool) -> bool {
    !says_close(headers) && (!is_old || super::has_word(headers, header::CONNECTION, b"keep-alive"))
}
