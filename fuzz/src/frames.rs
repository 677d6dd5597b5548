//! HTTP/2 frame by frame (RFC 9113): scripts for one end, well formed or not, and the frames of the other end.

use std::{collections::BTreeSet, time::Duration};

use arbitrary::{Result, Unstructured};

use crate::pipe::Act;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const WINDOW_UPDATE: u8 = 8;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The most acts of a script.
const MOST: usize = 256;
/// The most copies of one act.
const COPIES: usize = 600;

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX).to_be_bytes();
        let stream = self.stream.to_be_bytes();
        [&length[1..], &[self.kind, self.flags], &stream, &self.payload].concat()
    }
}

/// The whole frames among these bytes.
pub(crate) fn read(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(([a, b, c, kind, flags, stream @ ..], rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        // The first bit of a stream's number means nothing.
        let stream = u32::from_be_bytes(*stream) & 0x7fff_ffff;
        frames.push(Frame { kind: *kind, flags: *flags, stream, payload: payload.to_vec() });
        bytes = rest;
    }
    frames
}

/// The byte that everything on a stream consists of.
pub(crate) fn tag(stream: u32) -> u8 {
    (stream / 2) as u8 ^ 0x5a
}

/// What one end does, and of which streams nothing can be said therefore.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) acts: Vec<Act>,
    spoiled: BTreeSet<u32>,
    all_spoiled: bool,
    /// Streams that may be spoken on.
    streams: Vec<u32>,
}

/// Which end a script is of: how it begins a message on a stream.
pub(crate) trait Role {
    /// The next message's stream and fields, where it may begin one.
    fn begin(&mut self, u: &mut Unstructured<'_>) -> Result<Option<(u32, Vec<u8>)>>;
}

impl Script {
    /// What these bytes say, of an end that may speak on these streams from the beginning.
    pub(crate) fn read(u: &mut Unstructured<'_>, streams: Vec<u32>, role: &mut impl Role) -> Self {
        let mut script = Self { streams, ..Self::default() };
        while !u.is_empty() && script.acts.len() < MOST && script.act(u, role).is_ok() {}
        script
    }

    /// Whether nothing but whole messages was sent on a stream.
    pub(crate) fn is_clean(&self, stream: u32) -> bool {
        !self.all_spoiled && !self.spoiled.contains(&stream)
    }

    /// All that is sent.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let sent = self.acts.iter().filter_map(|act| match act {
            Act::Send(bytes) => Some(&bytes[..]),
            Act::Pause(_) => None,
        });
        sent.collect::<Vec<_>>().concat()
    }

    fn act(&mut self, u: &mut Unstructured<'_>, role: &mut impl Role) -> Result<()> {
        let sent = match u.arbitrary::<u8>()? % 12 {
            0 | 1 => {
                let Some((stream, fields)) = role.begin(u)? else { return Ok(()) };
                if !self.streams.contains(&stream) {
                    self.streams.push(stream);
                }
                let flags = END_HEADERS | if u.ratio(1, 2)? { END_STREAM } else { 0 };
                Frame { kind: HEADERS, flags, stream, payload: fields }.bytes()
            }
            2 => {
                let (stream, size) = (self.stream(u)?, u.int_in_range(0..=17_000_usize)?);
                let flags = u.arbitrary::<u8>()? & END_STREAM;
                Frame { kind: DATA, flags, stream, payload: vec![tag(stream); size] }.bytes()
            }
            3 => self.about_connection(u)?,
            4 => {
                let payload = (0..u.int_in_range(0..=3)?).map(|_| setting(u)).collect::<Result<Vec<_>>>()?;
                Frame { kind: SETTINGS, flags: 0, stream: 0, payload: payload.concat() }.bytes()
            }
            5 => {
                let (stream, size) = (u.int_in_range(0..=9)?, number(u)?);
                Frame { kind: WINDOW_UPDATE, flags: 0, stream, payload: size.to_be_bytes().into() }.bytes()
            }
            6 => self.raw(u)?,
            7 => {
                let mut frame = self.raw(u)?;
                frame[u.int_in_range(0..=2)?] ^= u.arbitrary::<u8>()?;
                self.all_spoiled = true;
                frame
            }
            8 => {
                self.all_spoiled = true;
                let size = u.int_in_range(0..=64)?;
                u.bytes(size)?.to_vec()
            }
            9 => return self.again(u),
            10 => {
                self.acts.push(Act::Pause(Duration::from_millis(number(u)?.min(100_000).into())));
                return Ok(());
            }
            _ => {
                let (stream, reason) = (self.stream(u)?, number(u)?);
                Frame { kind: RST_STREAM, flags: 0, stream, payload: reason.to_be_bytes().into() }.bytes()
            }
        };
        self.acts.push(Act::Send(sent));
        Ok(())
    }

    fn stream(&self, u: &mut Unstructured<'_>) -> Result<u32> {
        if self.streams.is_empty() { Ok(1) } else { u.choose(&self.streams).copied() }
    }

    fn about_connection(&self, u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
        let stream = self.stream(u)?;
        let (kind, stream, size) = *u.choose(&[(PING, 0, 8), (GOAWAY, 0, 8), (PRIORITY, stream, 5)])?;
        let flags = u.arbitrary::<u8>()? & 1;
        Ok(Frame { kind, flags, stream, payload: vec![0; size] }.bytes())
    }

    /// Any frame.
    fn raw(&mut self, u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
        let [kind, flags] = [u.int_in_range(0..=10)?, u.arbitrary()?];
        let stream = if u.ratio(7, 8)? { u.int_in_range(0..=9)? } else { number(u)? };
        self.spoiled.insert(stream & 0x7fff_ffff);
        // A head may go on on any stream.
        self.all_spoiled |= !matches!(kind, DATA..=PING | WINDOW_UPDATE);
        let size = u.int_in_range(0..=255)?;
        let payload = u.bytes(size.min(u.len()))?.to_vec();
        Ok(Frame { kind, flags, stream, payload }.bytes())
    }

    /// What was sent last, many times.
    fn again(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let copies = u.int_in_range(1..=COPIES)?;
        if let Some(Act::Send(last)) = self.acts.last_mut()
            && last.len() * copies <= 1 << 16
        {
            *last = last.repeat(copies);
        }
        Ok(())
    }
}

fn setting(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let name = u.int_in_range(0..=9_u16)?;
    Ok([&name.to_be_bytes()[..], &number(u)?.to_be_bytes()].concat())
}

/// Numbers at which something begins or ends, and others.
fn number(u: &mut Unstructured<'_>) -> Result<u32> {
    const EDGES: [u32; 12] =
        [0, 1, 2, 7, 100, 16_383, 16_384, 65_535, 65_536, (1 << 24) - 1, (1 << 31) - 1, u32::MAX];
    if u.ratio(3, 4)? { u.choose(&EDGES).copied() } else { u.arbitrary() }
}
