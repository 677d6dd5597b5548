//! Messages that are forwarded from the buffer they were read into, without a header map.
//!
//! Most messages hold nothing for the proxy itself: ordinary headers, and a body that arrived together with them. For
//! these messages a `HeaderMap`, a `Uri` and a body object would cost more than the rest of forwarding. A message that
//! does not qualify is not an error: [`RequestReader`](super::RequestReader) or
//! [`ResponseReader`](super::ResponseReader) parses it again. Unusual headers are therefore interpreted, and malformed
//! messages rejected, in one place.

#[cfg(test)]
mod tests;

use std::{mem::MaybeUninit, ops::Range, time::Duration};

use http::{HeaderName, StatusCode, header};
use httparse::{Header, ParserConfig, Status};

use super::{
    Framing, MAX_HEAD_BYTES, MIN_READ, ResponseContext, end_headers, parse_length,
    response_encoder::write_status_line, write_number,
};

/// Maximum number of header fields in a borrowed message.
const MAX_FIELDS: usize = 48;
/// Maximum body size of a borrowed message, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// Time to wait for the rest of a large message after most of it has arrived.
pub const REMAINDER_WAIT: Duration = Duration::from_millis(20);

/// A numeric field that the proxy adds, such as a deadline.
type NumberField<'a> = Option<&'a (HeaderName, u64)>;
/// A text field that the proxy adds.
type TextField<'a> = Option<&'a (HeaderName, &'a str)>;

/// Storage for the header fields of a message; may be uninitialised.
pub type HeaderStorage<'a> = [MaybeUninit<Header<'a>>; MAX_FIELDS];

/// Returns uninitialised storage.
pub const fn header_storage<'a>() -> HeaderStorage<'a> {
    [const { MaybeUninit::uninit() }; MAX_FIELDS]
}

/// An HTTP/1.1 request that concerns only the upstream server. It has no hop-by-hop header that matters, no framing
/// other than `content-length`, and no header that the caller reserves for itself.
#[derive(Debug)]
pub struct BorrowedRequest<'a> {
    /// One of the methods whose responses have ordinary bodies.
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Value of the only `host` header, which `fields` contain too.
    pub host: &'a str,
    /// Fields to forward.
    fields: &'a [Header<'a>],
    /// Additional fields to write.
    added: &'a [(&'static str, &'static str)],
    /// The complete body.
    pub body: &'a [u8],
    body_length: usize,
    /// Length of the whole request in bytes.
    pub length: usize,
}

/// A response whose body arrived together with its headers. It has no hop-by-hop headers that matter.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedResponse<'a> {
    /// A status from 200 to 499.
    pub status: StatusCode,
    fields: &'a [Header<'a>],
    /// Names of fields that are not written, in lower case.
    hidden: &'static [&'static str],
    /// The complete body.
    pub body: &'a [u8],
}

/// How a field is handled.
enum FieldClass {
    Forwarded,
    /// Not forwarded: a hop-by-hop header, or a redundant one.
    Dropped,
    Host,
    ContentLength,
    Cookie,
    /// Prevents the message from being forwarded from its buffer.
    Unsupported,
}

impl<'a> BorrowedRequest<'a> {
    /// Reads a request at the beginning of `input`. Returns `None` if the request is incomplete or does not qualify. A
    /// header name for which `is_reserved` returns true disqualifies the request; names are passed as they were sent,
    /// in any case.
    pub fn read(
        input: &'a [u8],
        storage: &'a mut HeaderStorage<'a>,
        is_reserved: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let mut head = Self::read_head(input, storage, is_reserved)?;
        head.body = input.get(head.length - head.body_length..head.length)?;
        Some(head)
    }

    /// Reads the headers of a request and leaves the body empty.
    pub fn read_head(
        input: &'a [u8],
        storage: &'a mut HeaderStorage<'a>,
        is_reserved: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let mut found = httparse::Request::new(&mut []);
        let parsed = ParserConfig::default().parse_request_with_uninit_headers(&mut found, input, storage);
        let Ok(Status::Complete(head @ ..=MAX_HEAD_BYTES)) = parsed else { return None };
        let (method, path) = (found.method?, found.path?);
        let is_common = matches!(method, "GET" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS");
        let is_path = is_path(path);
        #[cfg(test)]
        let is_path = is_path || is_active(Mutant::AcceptsAnyPath);
        if !is_common || found.version != Some(1) || !is_path {
            return None;
        }
        let (mut host, mut length, mut cookies, mut kept) = (None, None, 0, 0);
        let fields = found.headers;
        for at in 0..fields.len() {
            let field = fields[at];
            match classify_request_field(&field, &is_reserved) {
                FieldClass::Forwarded => {}
                FieldClass::Dropped => continue,
                FieldClass::Host if host.is_none() && is_host(field.value) => host = Some(field.value),
                FieldClass::ContentLength if length.is_none() => length = Some(parse_length(field.value)?),
                #[cfg(test)]
                FieldClass::Host if is_active(Mutant::AcceptsAnyHost) => {}
                FieldClass::Cookie if cookies == 0 => cookies = 1,
                _ => return None,
            }
            fields[kept] = field;
            kept += 1;
        }
        let body_length = checked_length(length.unwrap_or(0))?;
        // `is_host` has checked that the host is ASCII.
        let host = std::str::from_utf8(host?).ok()?;
        let fields: &'a [Header<'a>] = fields;
        let length = head + body_length;
        Some(Self { method, path, host, fields: &fields[..kept], added: &[], body: &[], body_length, length })
    }

    /// Returns the request with the fields of `added`, whose names are in lower case.
    #[must_use]
    pub fn with(self, added: &'a [(&'static str, &'static str)]) -> Self {
        Self { added, ..self }
    }

    /// Returns all values of the field `name`, which is in lower case.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.fields.iter();
        let declared =
            fields.filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value);
        let added = self.added.iter().filter(move |(own, _)| own.eq_ignore_ascii_case(name));
        declared.chain(added.map(|(_, value)| value.as_bytes()))
    }

    /// Writes the headers with this host and the optional numeric and text fields. The caller appends the body.
    pub fn write(&self, host: &str, (number, text): (NumberField<'_>, TextField<'_>), out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.path.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
        out.extend_from_slice(host.as_bytes());
        out.extend_from_slice(b"\r\n");
        if let Some((name, value)) = number {
            write_number(out, name, *value);
        }
        if let Some((name, value)) = text {
            super::write_field(out, name, value.as_bytes());
        }
        for field in self.fields.iter().filter(|field| !is_host_or_length(field)) {
            write(field, out);
        }
        for (name, value) in self.added {
            write(&Header { name, value: value.as_bytes() }, out);
        }
        // Servers expect a body with these methods (RFC 9110 8.6).
        let may_be_empty = matches!(self.method, "POST" | "PUT" | "PATCH");
        let length = self.body.len() as u64;
        end_headers(out, if length > 0 || may_be_empty { Framing::Length(length) } else { Framing::Absent });
    }
}

impl<'a> BorrowedResponse<'a> {
    /// Reads the response to a borrowed request. Returns `None` if the response is incomplete or does not qualify.
    pub fn read(input: &'a [u8], storage: &'a mut HeaderStorage<'a>) -> Option<Self> {
        let (mut response, body) = Self::head(input, storage)?;
        // Bytes beyond the end would belong to a response without a request.
        response.body = input.get(body.clone()).filter(|_| input.len() == body.end)?;
        Some(response)
    }

    /// Reads the headers of a response. Returns them with the range of the body in `input`.
    fn head(input: &'a [u8], storage: &'a mut HeaderStorage<'a>) -> Option<(Self, Range<usize>)> {
        let mut found = httparse::Response::new(&mut []);
        let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut found, input, storage);
        match parsed {
            Ok(Status::Complete(head @ ..=MAX_HEAD_BYTES)) => Self::of(found, head),
            Ok(_) | Err(_) => None,
        }
    }

    fn of(found: httparse::Response<'a, 'a>, head: usize) -> Option<(Self, Range<usize>)> {
        let status = StatusCode::from_u16(found.code?).ok()?;
        let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let is_common = (200..500).contains(&status.as_u16()) && status != StatusCode::MISDIRECTED_REQUEST;
        #[cfg(test)]
        let is_common = is_common || is_active(Mutant::AcceptsAnyStatus);
        if !is_common || bodiless || found.version != Some(1) {
            return None;
        }
        let (mut length, mut kept) = (None, 0);
        let fields = found.headers;
        for at in 0..fields.len() {
            let field = fields[at];
            match classify_response_field(&field) {
                FieldClass::Forwarded => {}
                FieldClass::Dropped => continue,
                FieldClass::ContentLength if length.is_none() => {
                    length = Some(parse_length(field.value)?);
                    continue;
                }
                _ => return None,
            }
            fields[kept] = field;
            kept += 1;
        }
        let body = head..head + checked_length(length?)?;
        let fields: &'a [Header<'a>] = fields;
        Some((Self { status, fields: &fields[..kept], hidden: &[], body: &[] }, body))
    }

    /// Returns the value of the field `name`, which is in lower case.
    pub fn value(&self, name: &HeaderName) -> Option<&'a [u8]> {
        let mut fields = self.fields.iter();
        fields.find(|field| field.name.eq_ignore_ascii_case(name.as_str())).map(|field| field.value)
    }

    /// Returns the response without the fields of these names, which are in lower case.
    #[must_use]
    pub fn hiding(self, hidden: &'static [&'static str]) -> Self {
        Self { hidden, ..self }
    }

    /// Names of the fields as they were sent, except `content-length`.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.fields.iter().map(|field| field.name)
    }

    /// Writes the headers; the caller appends the body. `date` returns the current time for a response without `date`.
    /// `closes` adds `connection: close`.
    pub fn write(&self, out: &mut Vec<u8>, date: impl FnOnce() -> [u8; 29], closes: bool) {
        write_status_line(out, self.status, ResponseContext::unknown());
        let mut dated = false;
        for field in self.fields {
            if self.hidden.iter().any(|name| field.name.eq_ignore_ascii_case(name)) {
                continue;
            }
            dated |= field.name.eq_ignore_ascii_case("date");
            write(field, out);
        }
        if !dated {
            super::write_field(out, &header::DATE, &date());
        }
        if closes {
            super::write_field(out, &header::CONNECTION, b"close");
        }
        end_headers(out, Framing::Length(self.body.len() as u64));
    }
}

/// Returns the length of a borrowed request if most of it has arrived, but not all.
pub fn nearly_complete_request(input: &[u8], is_reserved: impl Fn(&str) -> bool) -> Option<usize> {
    // Called for every request: small ones are not parsed again.
    if input.len() <= MIN_READ {
        return None;
    }
    let length = BorrowedRequest::read_head(input, &mut header_storage(), is_reserved)?.length;
    is_nearly_complete(input.len(), length).then_some(length)
}

/// Whether most of a response has arrived, but not all.
pub fn is_nearly_complete_response(input: &[u8]) -> bool {
    BorrowedResponse::head(input, &mut header_storage())
        .is_some_and(|(_, body)| is_nearly_complete(input.len(), body.end))
}

/// Whether at least half of the message has arrived, but not all. Small messages are never delayed: a sender that
/// splits a small message does so on purpose.
fn is_nearly_complete(received: usize, whole: usize) -> bool {
    received > MIN_READ && (whole.div_ceil(2)..whole).contains(&received)
}

fn write(field: &Header<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(field.name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(field.value);
    out.extend_from_slice(b"\r\n");
}

fn checked_length(declared: u64) -> Option<usize> {
    #[cfg(test)]
    let declared = if is_active(Mutant::TruncatesBodies) { declared.saturating_sub(1) } else { declared };
    usize::try_from(declared).ok().filter(|length| *length <= MAX_BODY)
}

fn is_host_or_length(field: &Header<'_>) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    match field.name.len() {
        4 => is("host"),
        14 => is("content-length"),
        _ => false,
    }
}

fn classify_request_field(field: &Header<'_>, is_reserved: impl Fn(&str) -> bool) -> FieldClass {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    match field.name.len() {
        2 if is("te") => FieldClass::Unsupported,
        4 if is("host") => FieldClass::Host,
        6 if is("cookie") => FieldClass::Cookie,
        6 if is("expect") => FieldClass::Unsupported,
        12 if is("content-type") && is_grpc(field.value) => FieldClass::Unsupported,
        12 if is("grpc-timeout") => FieldClass::Unsupported,
        14 if is("content-length") => FieldClass::ContentLength,
        _ if is_reserved(field.name) => FieldClass::Unsupported,
        _ => classify_common_field(field),
    }
}

fn classify_response_field(field: &Header<'_>) -> FieldClass {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    match field.name.len() {
        6 if is("expect") => FieldClass::Unsupported,
        11 if is("grpc-status") => FieldClass::Unsupported,
        14 if is("content-length") => FieldClass::ContentLength,
        _ => classify_common_field(field),
    }
}

/// Classifies hop-by-hop headers (RFC 9110 7.6.1) and framing headers.
fn classify_common_field(field: &Header<'_>) -> FieldClass {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    #[cfg(test)]
    if is_active(Mutant::KeepsConnection) && is("connection")
        || is_active(Mutant::IgnoresCodings) && is("transfer-encoding")
    {
        return FieldClass::Dropped;
    }
    let unsupported = match field.name.len() {
        7 => is("upgrade") || is("trailer"),
        10 if is("keep-alive") => return FieldClass::Dropped,
        10 if is("connection") && field.value.eq_ignore_ascii_case(b"keep-alive") => {
            return FieldClass::Dropped;
        }
        10 => is("connection"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        19 => is("proxy-authorization"),
        _ => false,
    };
    if unsupported { FieldClass::Unsupported } else { FieldClass::Forwarded }
}

fn is_grpc(kind: &[u8]) -> bool {
    kind.get(..16).is_some_and(|begin| begin.eq_ignore_ascii_case(b"application/grpc"))
}

/// Whether `path` begins with a slash and contains only characters of paths and queries (RFC 3986 3.3, 3.4), plus some
/// invalid ones that clients send in practice.
fn is_path(path: &str) -> bool {
    const ALLOWED: [bool; 256] = alphanumeric_and(b"-._~!$&'()*+,;=:@%/?\"<>`{}|^[]\\");
    path.starts_with('/') && path.bytes().all(|byte| ALLOWED[usize::from(byte)])
}

/// Whether `host` is a host name with an optional port: letters, digits, `-`, `.` and `_`, with an empty label at most
/// at the end (the root). IPv6 addresses in brackets are not accepted here.
fn is_host(host: &[u8]) -> bool {
    const ALLOWED: [bool; 256] = alphanumeric_and(b"-._");
    let (name, port) = match host.iter().position(|byte| *byte == b':') {
        Some(at) => (&host[..at], &host[at + 1..]),
        None => (host, &b"0"[..]),
    };
    let is_port = matches!(port.len(), 1..=5) && port.iter().all(u8::is_ascii_digit);
    // With five digits, lexical order is numeric order.
    let is_port = is_port && (port.len() < 5 || port <= &b"65535"[..]);
    let is_name = !matches!(name, [] | b"." | [.., b'.', b'.']);
    is_port && is_name && name.iter().all(|byte| ALLOWED[usize::from(*byte)])
}

/// Returns a table that is true for letters, digits and the bytes of `more`.
const fn alphanumeric_and(more: &[u8]) -> [bool; 256] {
    let mut allowed = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        allowed[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < more.len() {
        allowed[more[at] as usize] = true;
        at += 1;
    }
    allowed
}

/// A deliberate bug that a test must detect.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    KeepsConnection,
    IgnoresCodings,
    AcceptsAnyHost,
    TruncatesBodies,
    AcceptsAnyPath,
    AcceptsAnyStatus,
}

#[cfg(test)]
thread_local! {
    static ACTIVE_MUTANT: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is active.
#[cfg(test)]
fn is_active(mutant: Mutant) -> bool {
    ACTIVE_MUTANT.get() == Some(mutant)
}
