//! Decodes the bodies of received messages.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{MAX_FIELDS, MAX_HEAD_BYTES, Malformed, response_head::parse_error};

/// Maximum total size of chunk extensions in one body, in bytes; they are ignored. hyper has the same limit.
const MAX_EXTENSIONS: u32 = 16 * 1024;

/// Splits the pieces of a body off a read buffer without copying them.
#[derive(Debug)]
pub struct Decoder(State);

/// A piece of a decoded body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Body bytes, never empty.
    Data(Bytes),
    /// Trailers after the last chunk.
    Trailers(HeaderMap),
}

#[derive(Debug)]
enum State {
    Done,
    /// Remaining bytes of the body.
    Length(u64),
    UntilClose,
    Chunked(ChunkedState),
}

#[derive(Clone, Copy, Debug)]
struct ChunkedState {
    position: Position,
    /// Remaining bytes of the current chunk.
    left: u64,
    extensions: u32,
}

/// Position in the chunked framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Before the first digit of a chunk size.
    Start,
    Size,
    /// In white space after a chunk size.
    Space,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// In the trailer section; the number says how many of its bytes were already searched for the end.
    Trailers(usize),
}

impl Decoder {
    /// A decoder for a message without a body.
    pub fn absent() -> Self {
        Self(State::Done)
    }

    pub(super) fn length(length: u64) -> Self {
        Self(if length == 0 { State::Done } else { State::Length(length) })
    }

    pub(super) fn until_close() -> Self {
        Self(State::UntilClose)
    }

    pub(super) fn chunked() -> Self {
        Self(State::Chunked(ChunkedState { position: Position::Start, left: 0, extensions: 0 }))
    }

    /// Whether the body has ended. Bytes that follow belong to the next message.
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    /// Whether the end of the connection ends the body.
    pub(super) fn is_until_close(&self) -> bool {
        matches!(self.0, State::UntilClose)
    }

    /// Number of remaining bytes of the body; `None` for chunked bodies and bodies that end with the connection.
    pub fn left(&self) -> Option<u64> {
        match self.0 {
            State::Done => Some(0),
            State::Length(left) => Some(left),
            State::UntilClose | State::Chunked(_) => None,
        }
    }

    /// Minimum number of bytes that will follow; 0 if unknown.
    pub fn due(&self) -> u64 {
        match &self.0 {
            State::Length(left) => *left,
            State::Chunked(chunks) if chunks.position == Position::Data => chunks.left,
            _ => 0,
        }
    }

    /// Splits the next piece off `input`. Returns `None` if more bytes are needed or the body has ended.
    ///
    /// # Errors
    /// Malformed framing; nothing more may be read from the connection.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Piece>, Malformed> {
        let piece = match &mut self.0 {
            State::Done => None,
            State::Length(left) => {
                let piece = take(input, left);
                if *left == 0 {
                    self.0 = State::Done;
                }
                piece.map(Piece::Data)
            }
            State::UntilClose => (!input.is_empty()).then(|| Piece::Data(input.split().freeze())),
            State::Chunked(chunks) => match chunks.decode(input)? {
                ChunkStep::Data(data) => Some(Piece::Data(data)),
                ChunkStep::Incomplete => None,
                ChunkStep::End(trailers) => {
                    self.0 = State::Done;
                    trailers.map(Piece::Trailers)
                }
            },
        };
        Ok(piece)
    }

    /// Checks the framing of the received bytes as far as possible, without consuming them.
    ///
    /// # Errors
    /// Malformed framing, at which [`decode`](Self::decode) would fail later.
    pub(super) fn check(&self, came: &[u8]) -> Result<(), Malformed> {
        match &self.0 {
            State::Chunked(chunks) => (*chunks).check(came),
            State::Done | State::Length(_) | State::UntilClose => Ok(()),
        }
    }

    /// Handles the end of the connection after all received bytes were decoded. Returns whether the body may end here.
    pub fn close(&mut self) -> bool {
        if matches!(self.0, State::UntilClose) {
            self.0 = State::Done;
        }
        self.is_done()
    }
}

#[doc(hidden)]
impl Decoder {
    /// Injects a framing bug, for tests of connections that must detect it.
    pub fn stop_too_soon(&mut self) {
        if let State::Length(left) = &mut self.0 {
            *left -= 1;
        }
    }
}

/// Splits up to `left` bytes off `input`.
fn take(input: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    // An empty split would still cost a reference count of the memory.
    if most == 0 {
        return None;
    }
    *left -= most as u64;
    Some(input.split_to(most).freeze())
}

/// Result of one step of chunked decoding.
enum ChunkStep {
    Data(Bytes),
    Incomplete,
    End(Option<HeaderMap>),
}

impl ChunkedState {
    fn decode(&mut self, input: &mut BytesMut) -> Result<ChunkStep, Malformed> {
        while !input.is_empty() {
            match self.position {
                Position::Data => {
                    let data = take(input, &mut self.left);
                    if self.left == 0 {
                        self.position = Position::DataCr;
                    }
                    if let Some(data) = data {
                        return Ok(ChunkStep::Data(data));
                    }
                }
                Position::Trailers(searched) => return self.trailers(searched, input),
                _ => self.position = self.step(input.get_u8())?,
            }
        }
        Ok(ChunkStep::Incomplete)
    }

    /// Checks all bytes of `came`; the resulting state is discarded.
    fn check(mut self, mut came: &[u8]) -> Result<(), Malformed> {
        while let Some((first, rest)) = came.split_first() {
            match self.position {
                Position::Data => {
                    let size = usize::try_from(self.left).unwrap_or(usize::MAX).min(came.len());
                    came = &came[size..];
                    self.left -= size as u64;
                    if self.left == 0 {
                        self.position = Position::DataCr;
                    }
                }
                Position::Trailers(searched) => {
                    return match trailers_end(searched, came)? {
                        Some(length) if length > EMPTY => fields(&came[..length]).map(drop),
                        _ => Ok(()),
                    };
                }
                _ => (self.position, came) = (self.step(*first)?, rest),
            }
        }
        Ok(())
    }

    /// Handles one byte of chunk framing, outside chunk data.
    fn step(&mut self, byte: u8) -> Result<Position, Malformed> {
        Ok(match (self.position, byte) {
            (Position::Start | Position::Size, digit) if digit.is_ascii_hexdigit() => {
                self.push(digit)?;
                Position::Size
            }
            (Position::Size | Position::Space, b' ' | b'\t') => Position::Space,
            (Position::Size | Position::Space, b';') => Position::Extension,
            (Position::Size | Position::Space | Position::Extension, b'\r') => Position::SizeLf,
            (Position::Extension, other) if other != b'\n' => {
                self.extensions += 1;
                if self.extensions > MAX_EXTENSIONS {
                    return Err(Malformed("chunk extensions beyond 16 KiB"));
                }
                Position::Extension
            }
            (Position::SizeLf, b'\n') if self.left == 0 => Position::Trailers(0),
            (Position::SizeLf, b'\n') => Position::Data,
            (Position::DataCr, b'\r') => Position::DataLf,
            (Position::DataLf, b'\n') => Position::Start,
            (Position::DataCr | Position::DataLf, _) => {
                return Err(Malformed("a chunk is longer than its size"));
            }
            _ => return Err(Malformed("the size of a chunk")),
        })
    }

    fn push(&mut self, digit: u8) -> Result<(), Malformed> {
        let value = char::from(digit).to_digit(16).unwrap_or_default();
        let size = self.left.checked_mul(16).and_then(|size| size.checked_add(value.into()));
        self.left = size.ok_or(Malformed("the size of a chunk is beyond 64 bits"))?;
        Ok(())
    }

    fn trailers(&mut self, searched: usize, input: &mut BytesMut) -> Result<ChunkStep, Malformed> {
        match trailers_end(searched, input)? {
            None => {
                self.position = Position::Trailers(input.len());
                Ok(ChunkStep::Incomplete)
            }
            Some(EMPTY) => {
                input.advance(EMPTY);
                Ok(ChunkStep::End(None))
            }
            Some(length) => fields(&input.split_to(length)).map(|trailers| ChunkStep::End(Some(trailers))),
        }
    }
}

/// Length of a trailer section without fields.
const EMPTY: usize = 2;

/// Returns the length of the trailer section in the received bytes; `None` if it is incomplete. The first `searched`
/// bytes were searched before.
fn trailers_end(searched: usize, came: &[u8]) -> Result<Option<usize>, Malformed> {
    if came.starts_with(b"\r\n") {
        return Ok(Some(EMPTY));
    }
    let from = searched.saturating_sub(3);
    let end = came[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|end| from + end + 4);
    match end.unwrap_or(came.len()) > MAX_HEAD_BYTES {
        true => Err(Malformed("trailers beyond 64 KiB")),
        false => Ok(end),
    }
}

fn fields(section: &[u8]) -> Result<HeaderMap, Malformed> {
    // The parser accepts a bare LF as the end of a line, which enables request smuggling in the middle of a
    // connection.
    let bare = |line: &[u8]| line.last().is_some_and(|last| *last != b'\r');
    if section.split(|byte| *byte == b'\n').any(bare) {
        return Err(Malformed("a line of the trailers"));
    }
    let mut found = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let Ok(httparse::Status::Complete((_, found))) =
        httparse::parse_headers(section, &mut found).map_err(parse_error)
    else {
        return Err(Malformed("the trailers"));
    };
    let mut trailers = HeaderMap::with_capacity(found.len());
    for field in found {
        let name =
            HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Malformed("the name of a trailer"))?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| Malformed("the value of a trailer"))?;
        trailers.append(name, value);
    }
    Ok(trailers)
}
