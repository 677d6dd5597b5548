//! Rewrites the authorities that clients send over Unix sockets.
//!
//! gRPC C-core (Python, C++, C#, Ruby, PHP) sends the percent-encoded socket path as `:authority`, such as
//! `run%2Fagent.sock`. RFC 3986 allows that as a host, but the URI type of the HTTP/2 server used here does not, and
//! the server resets every such call. Over a Unix socket the host means nothing, so `%` is replaced by `-` in the
//! bytes that the client sends.
//!
//! C-core writes the value as a literal without Huffman coding, so the replacement changes neither lengths nor HPACK
//! state. Decoding and re-encoding every header block was rejected.

/// Length of the HTTP/2 connection preface, in bytes.
const PREFACE: u32 = 24;
/// Length of a frame header, in bytes.
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Length of the priority fields of HEADERS, in bytes.
const PRIORITY_FIELDS: u32 = 5;
const AUTHORITY: &[u8] = b":authority";
/// Index of `:authority` in the static table (RFC 7541, appendix A).
const AUTHORITY_INDEX: u8 = 1;

/// Replaces `%` in the `:authority` of HTTP/2 requests as their bytes are read.
#[derive(Debug)]
pub(super) struct AuthorityFilter {
    frame: Frame,
    block: Block,
}

/// Position within the frames (RFC 9113 4.1).
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// The next bytes, of this number, are passed through.
    Skip(u32),
    /// The frame header, and how many of its bytes were read.
    Header([u8; FRAME_HEADER], usize),
    /// The next byte is the padding length. Then come `priority` bytes of priority fields, and the header block with its
    /// padding, together `length` bytes.
    Padding { priority: u32, length: u32 },
    /// Inside a header block. The fields count what remains: bytes of priority fields, of the block itself, and of
    /// padding.
    HeaderBlock { priority: u32, left: u32, padding: u32 },
}

/// Position within a header block (RFC 7541 6).
#[derive(Clone, Copy, Debug)]
enum Block {
    Representation,
    /// The rest of an index, followed by a value or by the next representation.
    Index {
        has_value: bool,
    },
    Length(Literal),
    /// The rest of a length: the value read so far, and its number of bits.
    LengthRest(Literal, u32, u32),
    /// The remaining bytes of a string.
    Text(Literal, u32),
}

/// A string in a literal field.
#[derive(Clone, Copy, Debug)]
enum Literal {
    /// A name whose first bytes equal this many bytes of `:authority`.
    Name(usize),
    Value {
        is_authority: bool,
    },
}

impl AuthorityFilter {
    /// Creates a filter for the beginning of a connection.
    pub(super) const fn new() -> Self {
        Self { frame: Frame::Skip(PREFACE), block: Block::Representation }
    }

    /// Processes the next bytes of the connection.
    pub(super) fn apply(&mut self, mut bytes: &mut [u8]) {
        while let Some(first) = bytes.first_mut() {
            let mut taken = 1;
            self.frame = match self.frame {
                Frame::Skip(left) => {
                    taken = bytes.len().min(left as usize);
                    // At most `left`.
                    Frame::skip(left - taken as u32)
                }
                Frame::Header(mut header, filled) => {
                    header[filled] = *first;
                    match filled + 1 == FRAME_HEADER {
                        true => Frame::after(header),
                        false => Frame::Header(header, filled + 1),
                    }
                }
                Frame::Padding { priority, length } => {
                    let padding = u32::from(*first).min(length);
                    Frame::block(priority, length - padding, padding)
                }
                Frame::HeaderBlock { priority: priority @ 1.., left, padding } => {
                    Frame::block(priority - 1, left, padding)
                }
                Frame::HeaderBlock { left, padding, .. } => {
                    self.block = self.block.next(first);
                    Frame::block(0, left - 1, padding)
                }
            };
            bytes = &mut bytes[taken..];
        }
    }
}

impl Frame {
    fn skip(left: u32) -> Self {
        if left == 0 { Self::Header([0; FRAME_HEADER], 0) } else { Self::Skip(left) }
    }

    fn block(priority: u32, left: u32, padding: u32) -> Self {
        match (priority, left) {
            (0, 0) => Self::skip(padding),
            _ => Self::HeaderBlock { priority, left, padding },
        }
    }

    /// The state after a frame header.
    fn after([a, b, c, kind, flags, ..]: [u8; FRAME_HEADER]) -> Self {
        let length = u32::from_be_bytes([0, a, b, c]);
        if kind != HEADERS && kind != CONTINUATION {
            return Self::skip(length);
        }
        let has = |flag| kind == HEADERS && flags & flag != 0;
        let priority = if has(PRIORITY) { PRIORITY_FIELDS } else { 0 };
        let fixed = priority + u32::from(has(PADDED));
        // The server refuses frames that are too short.
        let Some(length) = length.checked_sub(fixed) else { return Self::skip(length) };
        match has(PADDED) {
            true => Self::Padding { priority, length },
            false => Self::block(priority, length, 0),
        }
    }
}

impl Block {
    /// The state after this byte.
    fn next(self, byte: &mut u8) -> Self {
        match self {
            Self::Representation => Self::after_representation(*byte),
            Self::Index { .. } if *byte & 0x80 != 0 => self,
            Self::Index { has_value: true } => Self::Length(Literal::Value { is_authority: false }),
            Self::Index { has_value: false } => Self::Representation,
            Self::Length(literal) => {
                // Huffman-coded strings are left unchanged.
                let literal = if *byte & 0x80 == 0 { literal } else { literal.opaque() };
                match *byte & 0x7f {
                    0x7f => Self::LengthRest(literal, 0x7f, 0),
                    length => Self::text(literal, length.into()),
                }
            }
            Self::LengthRest(literal, length, bits) => {
                let more = u32::from(*byte & 0x7f).checked_shl(bits).unwrap_or(0);
                let length = length.saturating_add(more);
                match *byte & 0x80 {
                    0 => Self::text(literal, length),
                    _ => Self::LengthRest(literal, length, bits.saturating_add(7)),
                }
            }
            Self::Text(literal, left) => Self::text(literal.after(byte), left - 1),
        }
    }

    /// The state after the first byte of a representation (RFC 7541 6.1 to 6.3).
    fn after_representation(first: u8) -> Self {
        let (prefix, has_value) = match first {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        match first & prefix {
            index if index == prefix => Self::Index { has_value },
            _ if !has_value => Self::Representation,
            0 => Self::Length(Literal::Name(0)),
            index => Self::Length(Literal::Value { is_authority: index == AUTHORITY_INDEX }),
        }
    }

    /// The state before a string of `left` bytes.
    fn text(literal: Literal, left: u32) -> Self {
        match (literal, left) {
            (literal, 1..) => Self::Text(literal, left),
            (Literal::Name(matching), 0) => {
                Self::Length(Literal::Value { is_authority: matching == AUTHORITY.len() })
            }
            (Literal::Value { .. }, 0) => Self::Representation,
        }
    }
}

impl Literal {
    /// The same string with unknown content.
    fn opaque(self) -> Self {
        match self {
            Self::Name(_) => Self::Name(usize::MAX),
            Self::Value { .. } => Self::Value { is_authority: false },
        }
    }

    /// The string after this byte. Replaces the byte if necessary.
    fn after(self, byte: &mut u8) -> Self {
        match self {
            Self::Name(matching) if AUTHORITY.get(matching) == Some(&*byte) => Self::Name(matching + 1),
            Self::Name(_) => self.opaque(),
            Self::Value { is_authority } => {
                if is_authority && *byte == b'%' {
                    *byte = b'-';
                }
                self
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// A literal field with this first byte, and a name if it has no index.
    fn field(first: u8, name: Option<&str>, value: &str) -> Vec<u8> {
        let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        [vec![first], name.map(text).unwrap_or_default(), text(value)].concat()
    }

    /// The bytes that a client sends with long fields before and after `:authority`.
    fn sent(authority: &[u8]) -> Vec<u8> {
        let long = field(0x40, Some("x-long"), &"%".repeat(100));
        let block = [&[0x83, 0x86][..], &field(0x44, None, "/a%2Fb"), authority, &long].concat();
        let (first, rest) = block.split_at(12);
        let padded = [&[2, 0, 0, 0, 0, 9][..], first, &[0x41, 5]].concat();
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, &[]),
            frame(HEADERS, PADDED | PRIORITY, &padded),
            frame(CONTINUATION, 4, rest),
            frame(0, 1, b"\x41\x03a%b"),
            frame(HEADERS, 5, &[0x83, 0xbe]),
        ]
        .concat()
    }

    #[test]
    fn percent_signs_in_unix_socket_authority_are_replaced() {
        for first in [0x41, 0x01, 0x11] {
            let named = |name: Option<&str>, value: &str| {
                sent(&field(if name.is_none() { first } else { first & 0xf0 }, name, value))
            };
            for name in [None, Some(":authority")] {
                let original = named(name, "run%2Fagent.sock");
                for size in [1, 7, 1000] {
                    let mut bytes = original.clone();
                    let mut filter = AuthorityFilter::new();
                    bytes.chunks_mut(size).for_each(|piece| filter.apply(piece));
                    let expected = named(name, "run-2Fagent.sock");
                    assert_eq!(bytes, expected, "{first:#x} {name:?} in pieces of {size}");
                }
            }
        }
    }

    #[test]
    fn rewrite_of_unix_socket_authority_keeps_other_fields() {
        let huffman = [&[0x41, 0x83][..], b"%%%"].concat();
        for field in [field(0x40, Some(":authorize"), "a%2Fb"), field(0x40, Some(":auth"), "a%b"), huffman] {
            let original = sent(&field);
            let mut bytes = original.clone();
            AuthorityFilter::new().apply(&mut bytes);
            assert_eq!(bytes, original);
        }
    }
}
