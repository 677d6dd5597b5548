//! The body of a message, as it comes in.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{MOST_FIELDS, MOST_HEAD, Malformed, answer::refused};

/// Bytes of chunk extensions in one body, which nobody uses. As hyper has it.
const MOST_EXTENSIONS: u32 = 16 * 1024;

/// Takes a body apart, without copying it.
#[derive(Debug)]
pub struct Decoder(State);

/// What a body is made of.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes, not none.
    Data(Bytes),
    /// What comes after them.
    Trailers(HeaderMap),
}

#[derive(Debug)]
enum State {
    Done,
    /// So many bytes are to come.
    Length(u64),
    UntilClose,
    Chunked(Chunks),
}

#[derive(Clone, Copy, Debug)]
struct Chunks {
    at: At,
    /// Of the chunk, so many bytes are to come.
    left: u64,
    extensions: u32,
}

/// Where in a chunked body what comes next belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
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
    /// So many bytes of the trailer section were searched for its end.
    Trailers(usize),
}

impl Decoder {
    /// Of a message that has no body.
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
        Self(State::Chunked(Chunks { at: At::Start, left: 0, extensions: 0 }))
    }

    /// Whether the body has ended: what follows is another message.
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    /// Whether the body ends where the connection does.
    pub(super) fn is_until_close(&self) -> bool {
        matches!(self.0, State::UntilClose)
    }

    /// The bytes of the body that are to come, where that is known.
    pub fn left(&self) -> Option<u64> {
        match self.0 {
            State::Done => Some(0),
            State::Length(left) => Some(left),
            State::UntilClose | State::Chunked(_) => None,
        }
    }

    /// How many bytes are sure to come next; 0 where that is not known.
    pub fn due(&self) -> u64 {
        match &self.0 {
            State::Length(left) => *left,
            State::Chunked(chunks) if chunks.at == At::Data => chunks.left,
            _ => 0,
        }
    }

    /// Takes the next piece out of what came so far; `None` where more has to come, or the body has ended.
    ///
    /// # Errors
    /// Where the body is not framed as it should be; nothing may be read from the connection any more.
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
                Chunk::Data(data) => Some(Piece::Data(data)),
                Chunk::Incomplete => None,
                Chunk::End(trailers) => {
                    self.0 = State::Done;
                    trailers.map(Piece::Trailers)
                }
            },
        };
        Ok(piece)
    }

    /// Whether what came of a body is framed as it should be, as far as that can be said; nothing is taken.
    ///
    /// # Errors
    /// Where [`decode`](Self::decode) would fail sooner or later.
    pub(super) fn check(&self, came: &[u8]) -> Result<(), Malformed> {
        match &self.0 {
            State::Chunked(chunks) => (*chunks).check(came),
            State::Done | State::Length(_) | State::UntilClose => Ok(()),
        }
    }

    /// The connection ended, and everything that came was decoded; whether the body may end so.
    pub fn close(&mut self) -> bool {
        if matches!(self.0, State::UntilClose) {
            self.0 = State::Done;
        }
        self.is_done()
    }
}

#[doc(hidden)]
impl Decoder {
    /// Plants a mistake, for tests of connections that must find it.
    pub fn stop_too_soon(&mut self) {
        if let State::Length(left) = &mut self.0 {
            *left -= 1;
        }
    }
}

/// Takes up to so many bytes.
fn take(input: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    // Taking nothing would cost a count of who uses the memory.
    if most == 0 {
        return None;
    }
    *left -= most as u64;
    Some(input.split_to(most).freeze())
}

/// What comes out of a chunked body.
enum Chunk {
    Data(Bytes),
    Incomplete,
    End(Option<HeaderMap>),
}

impl Chunks {
    fn decode(&mut self, input: &mut BytesMut) -> Result<Chunk, Malformed> {
        while !input.is_empty() {
            match self.at {
                At::Data => {
                    let data = take(input, &mut self.left);
                    if self.left == 0 {
                        self.at = At::DataCr;
                    }
                    if let Some(data) = data {
                        return Ok(Chunk::Data(data));
                    }
                }
                At::Trailers(searched) => return self.trailers(searched, input),
                _ => self.at = self.step(input.get_u8())?,
            }
        }
        Ok(Chunk::Incomplete)
    }

    /// Steps over all of `came`; what it is left as is of no use.
    fn check(mut self, mut came: &[u8]) -> Result<(), Malformed> {
        while let Some((first, rest)) = came.split_first() {
            match self.at {
                At::Data => {
                    let size = usize::try_from(self.left).unwrap_or(usize::MAX).min(came.len());
                    came = &came[size..];
                    self.left -= size as u64;
                    if self.left == 0 {
                        self.at = At::DataCr;
                    }
                }
                At::Trailers(searched) => {
                    return match trailers_end(searched, came)? {
                        Some(length) if length > EMPTY => fields(&came[..length]).map(drop),
                        _ => Ok(()),
                    };
                }
                _ => (self.at, came) = (self.step(*first)?, rest),
            }
        }
        Ok(())
    }

    /// One byte between the data of chunks.
    fn step(&mut self, byte: u8) -> Result<At, Malformed> {
        Ok(match (self.at, byte) {
            (At::Start | At::Size, digit) if digit.is_ascii_hexdigit() => {
                self.push(digit)?;
                At::Size
            }
            (At::Size | At::Space, b' ' | b'\t') => At::Space,
            (At::Size | At::Space, b';') => At::Extension,
            (At::Size | At::Space | At::Extension, b'\r') => At::SizeLf,
            (At::Extension, other) if other != b'\n' => {
                self.extensions += 1;
                if self.extensions > MOST_EXTENSIONS {
                    return Err(Malformed("chunk extensions beyond 16 KiB"));
                }
                At::Extension
            }
            (At::SizeLf, b'\n') if self.left == 0 => At::Trailers(0),
            (At::SizeLf, b'\n') => At::Data,
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Start,
            (At::DataCr | At::DataLf, _) => return Err(Malformed("a chunk is longer than its size")),
            _ => return Err(Malformed("the size of a chunk")),
        })
    }

    fn push(&mut self, digit: u8) -> Result<(), Malformed> {
        let value = char::from(digit).to_digit(16).unwrap_or_default();
        let size = self.left.checked_mul(16).and_then(|size| size.checked_add(value.into()));
        self.left = size.ok_or(Malformed("the size of a chunk is beyond 64 bits"))?;
        Ok(())
    }

    fn trailers(&mut self, searched: usize, input: &mut BytesMut) -> Result<Chunk, Malformed> {
        match trailers_end(searched, input)? {
            None => {
                self.at = At::Trailers(input.len());
                Ok(Chunk::Incomplete)
            }
            Some(EMPTY) => {
                input.advance(EMPTY);
                Ok(Chunk::End(None))
            }
            Some(length) => fields(&input.split_to(length)).map(|trailers| Chunk::End(Some(trailers))),
        }
    }
}

/// The length of a trailer section without fields.
const EMPTY: usize = 2;

/// The length of the trailer section that came, of which so many bytes were searched for its end before; `None` where it has not come.
fn trailers_end(searched: usize, came: &[u8]) -> Result<Option<usize>, Malformed> {
    if came.starts_with(b"\r\n") {
        return Ok(Some(EMPTY));
    }
    let from = searched.saturating_sub(3);
    let end = came[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|end| from + end + 4);
    match end.unwrap_or(came.len()) > MOST_HEAD {
        true => Err(Malformed("trailers beyond 64 KiB")),
        false => Ok(end),
    }
}

fn fields(section: &[u8]) -> Result<HeaderMap, Malformed> {
    // The parser takes a bare LF for the end of a line; in the middle of a connection that is a way to deceive.
    let bare = |line: &[u8]| line.last().is_some_and(|last| *last != b'\r');
    if section.split(|byte| *byte == b'\n').any(bare) {
        return Err(Malformed("a line of the trailers"));
    }
    let mut found = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let Ok(httparse::Status::Complete((_, found))) =
        httparse::parse_headers(section, &mut found).map_err(refused)
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
