//! Decodes the body of a received message.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{MAX_FIELDS, MAX_HEAD_BYTES, Malformed, response_head::parse_error};

/// Most bytes of chunk extensions in one body; they are ignored. The same limit as hyper's.
const MAX_EXTENSIONS: u32 = 16 * 1024;

/// Takes the pieces of a body out of a read buffer without copying them.
#[derive(Debug)]
pub struct Decoder(State);

/// A piece of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes, never empty.
    Data(Bytes),
    /// The trailers.
    Trailers(HeaderMap),
}

#[derive(Debug)]
enum State {
    Done,
    /// Bytes left.
    Length(u64),
    UntilClose,
    Chunked(ChunkedState),
}

#[derive(Clone, Copy, Debug)]
struct ChunkedState {
    position: Position,
    /// Bytes left of the current chunk.
    left: u64,
    extensions: u32,
}

/// Position in the chunked framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// The first digit of a size.
    Start,
    Size,
    /// White space after a size.
    Space,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// Bytes of the trailer section already searched for its end.
    Trailers(usize),
}

impl Decoder {
    /// For a message without a body.
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

    /// Whether the body has ended: what follows belongs to the next message.
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    /// Whether the body ends with the connection.
    pub(super) fn is_until_close(&self) -> bool {
        matches!(self.0, State::UntilClose)
    }

    /// Bytes left of the body, where the framing tells.
    pub fn left(&self) -> Option<u64> {
        match self.0 {
            State::Done => Some(0),
            State::Length(left) => Some(left),
            State::UntilClose | State::Chunked(_) => None,
        }
    }

    /// Bytes that are certain to follow next; 0 where unknown.
    pub fn due(&self) -> u64 {
        match &self.0 {
            State::Length(left) => *left,
            State::Chunked(chunks) if chunks.position == Position::Data => chunks.left,
            _ => 0,
        }
    }

    /// Takes the next piece out of `input`; `None` where more bytes are needed, or the body has ended.
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

    /// Checks the framing of received bytes as far as possible, without taking any.
    ///
    /// # Errors
    /// Where [`decode`](Self::decode) would fail later.
    pub(super) fn check(&self, came: &[u8]) -> Result<(), Malformed> {
        match &self.0 {
            State::Chunked(chunks) => (*chunks).check(came),
            State::Done | State::Length(_) | State::UntilClose => Ok(()),
        }
    }

    /// The connection was closed, and all received bytes were decoded; whether the body may end here.
    pub fn close(&mut self) -> bool {
        if matches!(self.0, State::UntilClose) {
            self.0 = State::Done;
        }
        self.is_done()
    }
}

#[doc(hidden)]
impl Decoder {
    /// Breaks the framing, for tests of connections that must detect it.
    pub fn stop_too_soon(&mut self) {
        if let State::Length(left) = &mut self.0 {
            *left -= 1;
        }
    }
}

/// Takes up to `left` bytes.
fn take(input: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    // An empty split would still cost a reference count of the memory.
    if most == 0 {
        return None;
    }
    *left -= most as u64;
    Some(input.split_to(most).freeze())
}

/// A step of chunked decoding.
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

    /// Steps over all of `came`; the state afterwards is discarded.
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

    /// One byte between the data of chunks.
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

/// The length of a trailer section without fields.
const EMPTY: usize = 2;

/// The length of the received trailer section, of which `searched` bytes were searched before; `None` where
/// incomplete.
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
