//! Messages that are passed on as they lie in memory, without being taken apart.
//!
//! Most of what programs and servers send says nothing to whoever passes it on: a head without surprises, and a body that came
//! with it. For these a map of fields, a URI and a body of its own would cost more than all the rest of passing them on.
//! What is not plain is no error: it is left to [`RequestReader`](super::RequestReader) and [`HeadReader`](super::HeadReader),
//! so that what anything unusual means, and what is refused, is decided in one place.

#[cfg(test)]
mod tests;

use std::{mem::MaybeUninit, ops::Range, time::Duration};

use http::{HeaderName, StatusCode, header};
use httparse::{Header, ParserConfig, Status};

use super::{Asked, Framing, LEAST_READ, MOST_HEAD, digits, end_head, number, response::status_line};

/// Fields of a plain message.
const MOST_FIELDS: usize = 48;
/// The longest body of a plain message, in bytes.
const MOST_BODY: usize = 64 * 1024;

/// How long the rest of a large message is waited for, when most of it has come.
pub const REST: Duration = Duration::from_millis(20);

/// Room for the fields of a message, which need not be cleared.
pub type Room<'a> = [MaybeUninit<Header<'a>>; MOST_FIELDS];

/// Room for the fields of a message.
pub const fn no_fields<'a>() -> Room<'a> {
    [const { MaybeUninit::uninit() }; MOST_FIELDS]
}

/// A request of HTTP/1.1 that is for a server alone: nothing in it belongs to the connection, frames it in another way than by
/// its length, or tells Fairmesh anything.
#[derive(Debug)]
pub struct PlainRequest<'a> {
    /// One of those whose answers have bodies like any other.
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// The one header `host`, which is among the fields as well.
    pub host: &'a str,
    /// All that go on.
    fields: &'a [Header<'a>],
    /// What is added to them.
    also: Option<(&'static str, &'static str)>,
    /// The body, all of it.
    pub body: &'a [u8],
    body_length: usize,
    /// How many bytes the whole request has.
    pub length: usize,
}

/// An answer whose body came with its head, and of which nothing needs to be known but what is here.
#[derive(Debug)]
pub struct PlainAnswer<'a> {
    /// From 200 to 499.
    pub status: StatusCode,
    fields: &'a [Header<'a>],
    /// The body, all of it.
    pub body: &'a [u8],
}

/// What is to be done with a field.
enum Field {
    GoesOn,
    /// It belongs to the connection and says what is understood anyway.
    Stays,
    Host,
    Length,
    Cookie,
    /// The message is not plain.
    Unusual,
}

impl<'a> PlainRequest<'a> {
    /// Reads a request that lies at the beginning of `input`; `None` where it is not plain, or not all of it is there.
    pub fn read(input: &'a [u8], room: &'a mut Room<'a>) -> Option<Self> {
        let mut head = Self::head(input, room)?;
        head.body = input.get(head.length - head.body_length..head.length)?;
        Some(head)
    }

    /// Reads the head of a request.
    fn head(input: &'a [u8], room: &'a mut Room<'a>) -> Option<Self> {
        let mut found = httparse::Request::new(&mut []);
        let parsed = ParserConfig::default().parse_request_with_uninit_headers(&mut found, input, room);
        let Ok(Status::Complete(head @ ..=MOST_HEAD)) = parsed else { return None };
        let (method, path) = (found.method?, found.path?);
        let usual = matches!(method, "GET" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS");
        let is_path = is_path(path);
        #[cfg(test)]
        let is_path = is_path || is_planted(Planted::TakesAnyPath);
        if !usual || found.version != Some(1) || !is_path {
            return None;
        }
        let (mut host, mut length, mut cookies, mut kept) = (None, None, 0, 0);
        let fields = found.headers;
        for at in 0..fields.len() {
            let field = fields[at];
            match of_request(&field) {
                Field::GoesOn => {}
                Field::Stays => continue,
                Field::Host if host.is_none() && is_host(field.value) => host = Some(field.value),
                Field::Length if length.is_none() => length = Some(digits(field.value)?),
                #[cfg(test)]
                Field::Host if is_planted(Planted::TakesAnyHost) => {}
                Field::Cookie if cookies == 0 => cookies = 1,
                _ => return None,
            }
            fields[kept] = field;
            kept += 1;
        }
        let body_length = length_of(length.unwrap_or(0))?;
        // It was checked to be of the characters that a host has.
        let host = std::str::from_utf8(host?).ok()?;
        let fields: &'a [Header<'a>] = fields;
        let length = head + body_length;
        Some(Self { method, path, host, fields: &fields[..kept], also: None, body: &[], body_length, length })
    }

    /// The same with another field, whose name is in lower case.
    #[must_use]
    pub fn with(self, name: &'static str, value: &'static str) -> Self {
        Self { also: Some((name, value)), ..self }
    }

    /// The values of a field, whose name is in lower case.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.fields.iter();
        let told = fields.filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value);
        told.chain(
            self.also
                .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.as_bytes()),
        )
    }

    /// Writes the head as it goes on to this host, and a field that holds a number, where there is one; the body follows it.
    pub fn write(&self, host: &str, field: Option<(&HeaderName, u64)>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.path.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
        out.extend_from_slice(host.as_bytes());
        out.extend_from_slice(b"\r\n");
        if let Some((name, value)) = field {
            number(out, name, value);
        }
        for field in self.fields.iter().filter(|field| !is_host_or_length(field)) {
            write(field, out);
        }
        if let Some((name, value)) = self.also {
            write(&Header { name, value: value.as_bytes() }, out);
        }
        // Of these, servers expect a body (RFC 9110 8.6).
        let may_be_empty = matches!(self.method, "POST" | "PUT" | "PATCH");
        let length = self.body.len() as u64;
        end_head(out, if length > 0 || may_be_empty { Framing::Length(length) } else { Framing::Absent });
    }
}

impl<'a> PlainAnswer<'a> {
    /// Reads the answer to a plain request; `None` where it is not plain, or not all of it is there.
    pub fn read(input: &'a [u8], room: &'a mut Room<'a>) -> Option<Self> {
        let (mut answer, body) = Self::head(input, room)?;
        // What is beyond its end nobody asked for.
        answer.body = input.get(body.clone()).filter(|_| input.len() == body.end)?;
        Some(answer)
    }

    /// Reads the head of an answer, and where its body lies.
    fn head(input: &'a [u8], room: &'a mut Room<'a>) -> Option<(Self, Range<usize>)> {
        let mut found = httparse::Response::new(&mut []);
        let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut found, input, room);
        match parsed {
            Ok(Status::Complete(head @ ..=MOST_HEAD)) => Self::of(found, head),
            Ok(_) | Err(_) => None,
        }
    }

    fn of(found: httparse::Response<'a, 'a>, head: usize) -> Option<(Self, Range<usize>)> {
        let status = StatusCode::from_u16(found.code?).ok()?;
        let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let usual = (200..500).contains(&status.as_u16()) && status != StatusCode::MISDIRECTED_REQUEST;
        #[cfg(test)]
        let usual = usual || is_planted(Planted::TakesAnyStatus);
        if !usual || bodiless || found.version != Some(1) {
            return None;
        }
        let (mut length, mut kept) = (None, 0);
        let fields = found.headers;
        for at in 0..fields.len() {
            let field = fields[at];
            match of_answer(&field) {
                Field::GoesOn => {}
                Field::Stays => continue,
                Field::Length if length.is_none() => {
                    length = Some(digits(field.value)?);
                    continue;
                }
                _ => return None,
            }
            fields[kept] = field;
            kept += 1;
        }
        let body = head..head + length_of(length?)?;
        let fields: &'a [Header<'a>] = fields;
        Some((Self { status, fields: &fields[..kept], body: &[] }, body))
    }

    /// The value of a field, whose name is in lower case.
    pub fn value(&self, name: &HeaderName) -> Option<&'a [u8]> {
        let mut fields = self.fields.iter();
        fields.find(|field| field.name.eq_ignore_ascii_case(name.as_str())).map(|field| field.value)
    }

    /// Writes the head as it goes on, which the body follows; `date` is the time now, where it does not tell it, and `closes` whether
    /// the connection ends with it.
    pub fn write(&self, out: &mut Vec<u8>, date: impl FnOnce() -> [u8; 29], closes: bool) {
        status_line(out, self.status, Asked::unknown());
        let mut dated = false;
        for field in self.fields {
            dated |= field.name.eq_ignore_ascii_case("date");
            write(field, out);
        }
        if !dated {
            super::field(out, &header::DATE, &date());
        }
        if closes {
            super::field(out, &header::CONNECTION, b"close");
        }
        end_head(out, Framing::Length(self.body.len() as u64));
    }
}

/// The length of a plain request of which this is most, and not all.
pub fn plain_request_lacks(input: &[u8]) -> Option<usize> {
    // Asked of every request: the small ones are not to be read once more.
    if input.len() <= LEAST_READ {
        return None;
    }
    let length = PlainRequest::head(input, &mut no_fields())?.length;
    is_most(input.len(), length).then_some(length)
}

/// Whether this is most of a plain answer, the rest of which has not come.
pub fn plain_answer_lacks(input: &[u8]) -> bool {
    PlainAnswer::head(input, &mut no_fields()).is_some_and(|(_, body)| is_most(input.len(), body.end))
}

/// Whether so much is at least half of the whole, and not all of it. Of what is small nothing is held back: who sends that in
/// pieces means it.
fn is_most(came: usize, whole: usize) -> bool {
    came > LEAST_READ && (whole.div_ceil(2)..whole).contains(&came)
}

fn write(field: &Header<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(field.name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(field.value);
    out.extend_from_slice(b"\r\n");
}

fn length_of(told: u64) -> Option<usize> {
    #[cfg(test)]
    let told = if is_planted(Planted::CutsBodies) { told.saturating_sub(1) } else { told };
    usize::try_from(told).ok().filter(|length| *length <= MOST_BODY)
}

fn is_host_or_length(field: &Header<'_>) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    match field.name.len() {
        4 => is("host"),
        14 => is("content-length"),
        _ => false,
    }
}

fn of_request(field: &Header<'_>) -> Field {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    match field.name.len() {
        2 if is("te") => Field::Unusual,
        4 if is("host") => Field::Host,
        6 if is("cookie") => Field::Cookie,
        6 if is("expect") => Field::Unusual,
        12 if is("content-type") && is_grpc(field.value) => Field::Unusual,
        12 if is("grpc-timeout") => Field::Unusual,
        14 if is("content-length") => Field::Length,
        11.. if field.name.get(..11).is_some_and(|begin| begin.eq_ignore_ascii_case("x-fairmesh-")) => {
            Field::Unusual
        }
        _ => of_either(field),
    }
}

fn of_answer(field: &Header<'_>) -> Field {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    match field.name.len() {
        6 if is("expect") => Field::Unusual,
        11 if is("grpc-status") => Field::Unusual,
        14 if is("content-length") => Field::Length,
        _ => of_either(field),
    }
}

/// What belongs to connections (RFC 9110 7.6.1), and how messages are framed.
fn of_either(field: &Header<'_>) -> Field {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    #[cfg(test)]
    if is_planted(Planted::KeepsConnection) && is("connection")
        || is_planted(Planted::IgnoresCodings) && is("transfer-encoding")
    {
        return Field::Stays;
    }
    let unusual = match field.name.len() {
        7 => is("upgrade") || is("trailer"),
        10 if is("keep-alive") => return Field::Stays,
        10 if is("connection") && field.value.eq_ignore_ascii_case(b"keep-alive") => return Field::Stays,
        10 => is("connection"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        19 => is("proxy-authorization"),
        _ => false,
    };
    if unusual { Field::Unusual } else { Field::GoesOn }
}

fn is_grpc(kind: &[u8]) -> bool {
    kind.get(..16).is_some_and(|begin| begin.eq_ignore_ascii_case(b"application/grpc"))
}

/// Whether it begins with a slash and has only what paths and queries are made of (RFC 3986 3.3, 3.4), or what programs put there
/// all the same.
fn is_path(path: &str) -> bool {
    const USUAL: [bool; 256] = usual(b"-._~!$&'()*+,;=:@%/?\"<>`{}|^[]\\");
    path.starts_with('/') && path.bytes().all(|byte| USUAL[usize::from(byte)])
}

/// Whether it is the name of a host as [`HostPort`](fairmesh_model::HostPort) has it, with or without a port; addresses in brackets
/// are not looked at here.
fn is_host(host: &[u8]) -> bool {
    const USUAL: [bool; 256] = usual(b"-._");
    let (name, port) = match host.iter().position(|byte| *byte == b':') {
        Some(at) => (&host[..at], &host[at + 1..]),
        None => (host, &b"0"[..]),
    };
    let is_port = matches!(port.len(), 1..=5) && port.iter().all(u8::is_ascii_digit);
    // Of five digits, the order of texts is that of numbers.
    let is_port = is_port && (port.len() < 5 || port <= &b"65535"[..]);
    let is_name = !matches!(name, [] | b"." | [.., b'.', b'.']);
    is_port && is_name && name.iter().all(|byte| USUAL[usize::from(*byte)])
}

/// Letters, digits and these.
const fn usual(more: &[u8]) -> [bool; 256] {
    let mut usual = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        usual[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < more.len() {
        usual[more[at] as usize] = true;
        at += 1;
    }
    usual
}

/// A mistake, for a test that must find it.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    KeepsConnection,
    IgnoresCodings,
    TakesAnyHost,
    CutsBodies,
    TakesAnyPath,
    TakesAnyStatus,
}

#[cfg(test)]
thread_local! {
    static PLANTED_HERE: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Whether this mistake is to be made.
#[cfg(test)]
fn is_planted(planted: Planted) -> bool {
    PLANTED_HERE.get() == Some(planted)
}
