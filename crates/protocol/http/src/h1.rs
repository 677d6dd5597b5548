//! HTTP/1.1 messages as bytes (RFC 9112), without sockets: shared by client connections and proxy listeners.
//!
//! The sender frames a body by its known length, never by the caller's headers. The receiver rejects messages that two
//! parsers could read differently (request smuggling); hyper's client, which this code replaced, accepts more of them.

mod body_decoder;
mod borrowed_message;
mod encoder;
mod later_versions;
mod read_buffer;
mod request_head;
mod request_target;
mod response_encoder;
mod response_head;
pub mod thread_buffers;
mod write_buffer;

#[cfg(test)]
mod tests;

use http::{HeaderMap, HeaderValue, header};

pub use body_decoder::{Decoder, Piece};
pub use borrowed_message::{
    BorrowedRequest, BorrowedResponse, HeaderStorage, REMAINDER_WAIT, header_storage,
};
pub use borrowed_message::{is_nearly_complete_response, nearly_complete_request};
pub use encoder::{
    Encoder, Framing, UnsupportedTransferCoding, WrongLength, begin_request, end_headers, write_field,
    write_fields, write_number,
};
pub use later_versions::lower_version;
pub use read_buffer::{MAX_READ, MIN_READ, ReadBuffer};
pub use request_head::{ReceivedRequest, RequestError, RequestReader};
pub use response_encoder::{ResponseContext, write_informational, write_response};
pub use response_head::{ReceivedResponse, ResponseReader};
pub use write_buffer::WriteBuffer;

/// Bytes that are not HTTP/1.1, or that two parsers could read differently. Holds the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed or ambiguous HTTP/1.1: {0}")]
pub struct Malformed(&'static str);

/// Maximum number of header fields, or of trailer fields, in a message. Applies to both HTTP/1.1 and HTTP/2.
pub(crate) const MAX_FIELDS: usize = 128;
/// Maximum size of the headers with the first line, in bytes of their HTTP/1.1 form. Offsets within them fit 16 bits.
pub(crate) const MAX_HEAD_BYTES: usize = u16::MAX as usize;

/// The value of `content-length`; it may be repeated, but only with the same value.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut length = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for text in value.as_bytes().split(|byte| *byte == b',') {
            let told = parse_length(text.trim_ascii())
                .ok_or(Malformed("content-length is not a number up to 2^63 - 1"))?;
            if *length.get_or_insert(told) != told {
                return Err(Malformed("two values of content-length differ"));
            }
        }
    }
    Ok(length)
}

/// Returns the length of the body, and rewrites the header as a single number, since other parsers may misread a list
/// (RFC 9110 8.6).
///
/// # Errors
/// The header is invalid, or its values differ.
pub fn normalize_length(headers: &mut HeaderMap) -> Result<Option<u64>, Malformed> {
    let length = content_length(headers)?;
    if let Some(length) = length
        && !is_single_number(headers)
    {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    Ok(length)
}

/// Whether a valid `content-length` is a single number.
fn is_single_number(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_LENGTH).into_iter();
    let first = values.next().is_some_and(|value| value.as_bytes().iter().all(u8::is_ascii_digit));
    first && values.next().is_none()
}

/// Parses ASCII digits only, which `str::parse` would not enforce, up to 2^63 - 1, because many parsers read lengths
/// as signed numbers.
fn parse_length(text: &[u8]) -> Option<u64> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    let number = |sum: i64, byte: &u8| sum.checked_mul(10)?.checked_add(digit(*byte)?);
    let number = (!text.is_empty()).then(|| text.iter().try_fold(0, number)).flatten()?;
    u64::try_from(number).ok()
}

/// Whether a comma-separated list header contains the token `word`, ignoring case.
fn has_token(headers: &HeaderMap, name: header::HeaderName, word: &[u8]) -> bool {
    let mut words =
        headers.get_all(name).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.any(|one| one.trim_ascii().eq_ignore_ascii_case(word))
}

/// Whether the headers contain `connection: close`.
pub fn has_connection_close(headers: &HeaderMap) -> bool {
    has_token(headers, header::CONNECTION, b"close")
}

/// Whether a request asks to switch protocols (RFC 9110 7.8).
pub fn requests_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, header::CONNECTION, b"upgrade") && headers.contains_key(header::UPGRADE)
}

/// Joins the `cookie` fields that HTTP/2 may split into one, which HTTP/1.1 servers expect (RFC 9113 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let parts: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    // Valid values joined by `; ` form a valid value.
    if let Ok(joined) = HeaderValue::from_bytes(&parts.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}
