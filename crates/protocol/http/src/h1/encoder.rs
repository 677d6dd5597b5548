//! Writes requests, header fields and bodies.

use http::{HeaderMap, HeaderName, Method, header};

use super::content_length;

/// How the length of a body is conveyed (RFC 9112 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body, and no header about its length.
    Absent,
    /// By `content-length`, in bytes.
    Length(u64),
    /// By chunked transfer coding.
    Chunked,
    /// By the end of the connection: only for responses to HTTP/1.0.
    UntilClose,
}

/// The caller's headers name a transfer coding that the sender does not implement.
#[derive(Debug, thiserror::Error)]
#[error("transfer-encoding must be 'chunked' or absent: the body is sent as it is")]
pub struct UnsupportedTransferCoding;

/// The body does not have its declared length.
#[derive(Debug, thiserror::Error)]
pub enum WrongLength {
    /// The body is longer than declared.
    #[error("the body is longer than its content-length; nothing beyond it was sent")]
    Longer,
    /// The body is shorter than declared, by this many bytes.
    #[error("the body ended {0} bytes before its content-length")]
    Shorter(u64),
}

impl Framing {
    /// Chooses the framing for a body of this length; `None` means that the length is unknown, in which case a single
    /// valid `content-length` of the caller is used. A known length takes precedence over the caller's header, which is
    /// not sent.
    ///
    /// # Errors
    /// The caller's headers name a transfer coding other than `chunked`.
    pub fn of(
        method: &Method,
        headers: &HeaderMap,
        length: Option<u64>,
    ) -> Result<Self, UnsupportedTransferCoding> {
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).into_iter();
        if codings.any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
            return Err(UnsupportedTransferCoding);
        }
        Ok(match length {
            // Servers expect a body with these methods (RFC 9110 8.6).
            Some(0) if !matches!(*method, Method::POST | Method::PUT | Method::PATCH) => Self::Absent,
            Some(length) => Self::Length(length),
            None => match content_length(headers) {
                Ok(Some(length)) => Self::Length(length),
                _ => Self::Chunked,
            },
        })
    }
}

/// Writes the request line and `host`. The caller then writes the fields and calls [`end_headers`].
pub fn begin_request(out: &mut Vec<u8>, method: &Method, path: &str, host: &[u8]) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    out.extend_from_slice(host);
    out.extend_from_slice(b"\r\n");
}

/// Writes a field, whose value must be a valid `HeaderValue`.
pub fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a field with a numeric value.
pub fn write_number(out: &mut Vec<u8>, name: &HeaderName, value: u64) {
    let mut text = [0; 20];
    write_field(out, name, format_number(value, 10, &mut text));
}

/// Writes the caller's fields, except `host`, framing headers and the fields in `own`, which are written separately.
pub fn write_fields(out: &mut Vec<u8>, headers: &HeaderMap, own: &[HeaderName]) {
    let mut has_cookie = false;
    for (name, value) in headers {
        let framing = matches!(*name, header::HOST | header::CONTENT_LENGTH | header::TRANSFER_ENCODING);
        if framing || own.contains(name) {
            continue;
        }
        // HTTP/2 may split a cookie into several fields, but HTTP/1.1 servers read only one (RFC 9113 8.2.3). Values of
        // the same name are adjacent.
        if *name == header::COOKIE && std::mem::replace(&mut has_cookie, true) {
            out.truncate(out.len() - 2);
            out.extend_from_slice(b"; ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        } else {
            write_field(out, name, value.as_bytes());
        }
    }
}

/// Writes the framing headers and the empty line that ends the headers.
pub fn end_headers(out: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::Absent | Framing::UntilClose => {}
        Framing::Length(length) => write_number(out, &header::CONTENT_LENGTH, length),
        Framing::Chunked => write_field(out, &header::TRANSFER_ENCODING, b"chunked"),
    }
    out.extend_from_slice(b"\r\n");
}

/// Formats a number in this base, at most 16, at the end of `text`.
fn format_number(mut value: u64, base: u64, text: &mut [u8; 20]) -> &[u8] {
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b"0123456789abcdef"[(value % base) as usize];
        value /= base;
        if value == 0 {
            return &text[at..];
        }
    }
}

/// Writes a body in the given framing.
#[derive(Debug)]
pub struct Encoder(Framing);

impl Encoder {
    /// Returns an encoder for a body with this framing.
    pub fn new(framing: Framing) -> Self {
        Self(if framing == Framing::Length(0) { Framing::Absent } else { framing })
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.0 == Framing::Absent
    }

    /// Encodes a piece of the body, which must not be empty. Writes the framing that precedes the piece to `out`, and
    /// returns the framing that follows it. `last` means that the caller knows this to be the last piece.
    ///
    /// # Errors
    /// The body is longer than declared.
    pub fn data(&mut self, size: usize, last: bool, out: &mut Vec<u8>) -> Result<&'static [u8], WrongLength> {
        match &mut self.0 {
            Framing::Absent => Err(WrongLength::Longer),
            Framing::UntilClose => Ok(b""),
            Framing::Length(left) => {
                *left = left.checked_sub(size as u64).ok_or(WrongLength::Longer)?;
                *self = Self::new(self.0);
                Ok(b"")
            }
            Framing::Chunked => {
                let mut text = [0; 20];
                out.extend_from_slice(format_number(size as u64, 16, &mut text));
                out.extend_from_slice(b"\r\n");
                if last {
                    self.0 = Framing::Absent;
                }
                Ok(if last { b"\r\n0\r\n\r\n" } else { b"\r\n" })
            }
        }
    }

    /// Ends the body and writes the trailers. Trailers are dropped unless the body is chunked.
    ///
    /// # Errors
    /// The body is shorter than declared.
    pub fn end(&mut self, trailers: &HeaderMap, out: &mut Vec<u8>) -> Result<(), WrongLength> {
        match std::mem::replace(&mut self.0, Framing::Absent) {
            Framing::Absent | Framing::UntilClose => Ok(()),
            Framing::Length(left) => Err(WrongLength::Shorter(left)),
            Framing::Chunked => {
                out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.iter().filter(|(name, _)| is_allowed_trailer(name)) {
                    write_field(out, name, value.as_bytes());
                }
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

/// Whether a field may be a trailer: excludes framing, routing, and fields that the recipient needs before the body
/// (RFC 9110 6.5.1).
fn is_allowed_trailer(name: &HeaderName) -> bool {
    !matches!(
        *name,
        header::AUTHORIZATION
            | header::CACHE_CONTROL
            | header::CONNECTION
            | header::CONTENT_ENCODING
            | header::CONTENT_LENGTH
            | header::CONTENT_RANGE
            | header::CONTENT_TYPE
            | header::EXPECT
            | header::HOST
            | header::MAX_FORWARDS
            | header::TE
            | header::TRAILER
            | header::TRANSFER_ENCODING
    )
}
