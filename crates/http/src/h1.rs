//! HTTP/1.1 messages as bytes (RFC 9112), without sockets: what the library's connections and those of a proxy share.
//!
//! Whoever sends frames a body by what is known of it, and never by what some header says of it. Whoever receives refuses
//! what two readers could take apart differently; hyper's client, which this replaced, is more forgiving there.

mod answer;
mod body;
mod inbox;
mod outbox;
mod plain;
mod received;
mod request;
mod response;
pub mod scratch;
mod target;
mod version;

#[cfg(test)]
mod tests;

use http::{HeaderMap, header};

pub use answer::{Answer, HeadReader};
pub use body::{Decoder, Piece};
pub use inbox::{Inbox, LEAST_READ, MOST_READ};
pub use outbox::Outbox;
pub use plain::plain_answer_lacks;
pub use plain::{PlainAnswer, PlainRequest, REST, Room, no_fields, plain_request_lacks};
pub use received::{Received, RequestReader, Unserved};
pub use request::{Encoder, Framing, Unframed, WrongLength, begin_request, end_head, field, fields, number};
pub use response::{Asked, informational, response};
pub use version::lower_version;

/// Bytes that are no HTTP/1.1, or that two readers could understand differently; says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not HTTP/1.1 that can be relied on: {0}")]
pub struct Malformed(&'static str);

/// The most fields of a message's headers, or of its trailers: of requests and responses, over HTTP/1.1 and HTTP/2.
pub(crate) const MOST_FIELDS: usize = 128;
/// The most bytes of them, as HTTP/1.1 writes them with the first line: places among them fit 16 bits.
pub(crate) const MOST_HEAD: usize = u16::MAX as usize;

/// The length that a head tells; it may do so several times, but only ever the same.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut length = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for text in value.as_bytes().split(|byte| *byte == b',') {
            let told =
                digits(text.trim_ascii()).ok_or(Malformed("a content-length is no number up to 2^63 - 1"))?;
            if *length.get_or_insert(told) != told {
                return Err(Malformed("two values of content-length differ"));
            }
        }
    }
    Ok(length)
}

/// Digits and nothing else, as `str::parse` would not have it, up to 2^63 - 1: many readers take lengths for signed numbers.
fn digits(text: &[u8]) -> Option<u64> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    let number = |sum: i64, byte: &u8| sum.checked_mul(10)?.checked_add(digit(*byte)?);
    let number = (!text.is_empty()).then(|| text.iter().try_fold(0, number)).flatten()?;
    u64::try_from(number).ok()
}

/// Whether one of the comma-separated words of a field is this one, whatever its case.
fn has_word(headers: &HeaderMap, name: header::HeaderName, word: &[u8]) -> bool {
    let mut words =
        headers.get_all(name).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.any(|one| one.trim_ascii().eq_ignore_ascii_case(word))
}

/// Whether a head says that the connection closes after its message.
pub fn says_close(headers: &HeaderMap) -> bool {
    has_word(headers, header::CONNECTION, b"close")
}

/// Whether the head of a request asks to speak another protocol from its answer on (RFC 9110 7.8).
pub fn says_upgrade(headers: &HeaderMap) -> bool {
    has_word(headers, header::CONNECTION, b"upgrade") && headers.contains_key(header::UPGRADE)
}
