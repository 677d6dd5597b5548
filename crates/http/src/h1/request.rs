//! A request on its way out: its head, and how its body is framed.

use http::{HeaderMap, HeaderName, Method, header};

use super::content_length;

/// How a server tells where the body of a request ends (RFC 9112 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body, and nothing needs to say so.
    Absent,
    /// By its length, in bytes.
    Length(u64),
    /// By chunks.
    Chunked,
    /// By the end of the connection: answers to HTTP/1.0 only.
    UntilClose,
}

/// The caller asks for a transfer coding that the sender does not apply.
#[derive(Debug, thiserror::Error)]
#[error("transfer-encoding may only be 'chunked', or be left out: the body is sent as it is")]
pub struct Unframed;

/// The body is not as long as was said.
#[derive(Debug, thiserror::Error)]
pub enum WrongLength {
    /// More came.
    #[error("the body is longer than its content-length; nothing beyond it was sent")]
    Longer,
    /// It ended.
    #[error("the body ended {0} bytes before its content-length")]
    Shorter(u64),
}

impl Framing {
    /// Of a body of this length, `None` where it is not known. Then what the caller's headers say counts, if that is one
    /// number; otherwise the length that is known does, and theirs is not sent.
    ///
    /// # Errors
    /// Where the caller's headers name another transfer coding than `chunked`.
    pub fn of(method: &Method, headers: &HeaderMap, length: Option<u64>) -> Result<Self, Unframed> {
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).into_iter();
        if codings.any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
            return Err(Unframed);
        }
        Ok(match length {
            // Of these, servers expect a body (RFC 9110 8.6).
            Some(0) if !matches!(*method, Method::POST | Method::PUT | Method::PATCH) => Self::Absent,
            Some(length) => Self::Length(length),
            None => match content_length(headers) {
                Ok(Some(length)) => Self::Length(length),
                _ => Self::Chunked,
            },
        })
    }
}

/// Begins the head of a request for this path and query, which the host opens. The caller adds fields, and [`end_head`].
pub fn begin_request(out: &mut Vec<u8>, method: &Method, path: &str, host: &[u8]) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    out.extend_from_slice(host);
    out.extend_from_slice(b"\r\n");
}

/// Adds a field, whose value must hold what a `HeaderValue` may.
pub fn field(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Adds a field whose value is a number.
pub fn number(out: &mut Vec<u8>, name: &HeaderName, value: u64) {
    let mut text = [0; 20];
    field(out, name, written(value, 10, &mut text));
}

/// Adds the caller's fields, but for those that frame the message or have been written already: these, and the host.
pub fn fields(out: &mut Vec<u8>, headers: &HeaderMap, own: &[HeaderName]) {
    let mut has_cookie = false;
    for (name, value) in headers {
        let framing = matches!(*name, header::HOST | header::CONTENT_LENGTH | header::TRANSFER_ENCODING);
        if framing || own.contains(name) {
            continue;
        }
        // HTTP/2 may cut a cookie into several fields, and servers of HTTP/1.1 look at one (RFC 9113 8.2.3). The values of a name
        // come one after the other.
        if *name == header::COOKIE && std::mem::replace(&mut has_cookie, true) {
            out.truncate(out.len() - 2);
            out.extend_from_slice(b"; ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        } else {
            field(out, name, value.as_bytes());
        }
    }
}

/// Ends a head by saying how the body is framed.
pub fn end_head(out: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::Absent | Framing::UntilClose => {}
        Framing::Length(length) => number(out, &header::CONTENT_LENGTH, length),
        Framing::Chunked => field(out, &header::TRANSFER_ENCODING, b"chunked"),
    }
    out.extend_from_slice(b"\r\n");
}

/// A number in digits of this base, up to 16, at the end of `text`, which holds any.
fn written(mut value: u64, base: u64, text: &mut [u8; 20]) -> &[u8] {
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

/// Writes a body as it was framed.
#[derive(Debug)]
pub struct Encoder(Framing);

impl Encoder {
    /// For a body framed so.
    pub fn new(framing: Framing) -> Self {
        Self(if framing == Framing::Length(0) { Framing::Absent } else { framing })
    }

    /// Whether nothing is to follow.
    pub fn is_done(&self) -> bool {
        self.0 == Framing::Absent
    }

    /// A piece of the body, which must not be empty: writes what goes before it and returns what goes after it. `last`
    /// where it is known that nothing follows.
    ///
    /// # Errors
    /// Where it does not fit what was said of the body.
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
                out.extend_from_slice(written(size as u64, 16, &mut text));
                out.extend_from_slice(b"\r\n");
                if last {
                    self.0 = Framing::Absent;
                }
                Ok(if last { b"\r\n0\r\n\r\n" } else { b"\r\n" })
            }
        }
    }

    /// The end of the body, with what trailers it has. Those of a body without chunks cannot be expressed.
    ///
    /// # Errors
    /// Where the body is shorter than was said.
    pub fn end(&mut self, trailers: &HeaderMap, out: &mut Vec<u8>) -> Result<(), WrongLength> {
        match std::mem::replace(&mut self.0, Framing::Absent) {
            Framing::Absent | Framing::UntilClose => Ok(()),
            Framing::Length(left) => Err(WrongLength::Shorter(left)),
            Framing::Chunked => {
                out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.iter().filter(|(name, _)| may_trail(name)) {
                    field(out, name, value.as_bytes());
                }
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

/// Whether a field may come after the body: not what frames or routes a message or what its reader needs before (RFC 9110
/// 6.5.1).
fn may_trail(name: &HeaderName) -> bool {
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
