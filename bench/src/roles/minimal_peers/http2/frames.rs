//! Frames (RFC 9113 4.1).

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const DATA: u8 = 0x0;
pub(super) const HEADERS: u8 = 0x1;
pub(super) const RST_STREAM: u8 = 0x3;
pub(super) const SETTINGS: u8 = 0x4;
pub(super) const PING: u8 = 0x6;
pub(super) const GOAWAY: u8 = 0x7;
pub(super) const WINDOW_UPDATE: u8 = 0x8;
pub(super) const CONTINUATION: u8 = 0x9;

/// ACK flag of SETTINGS and PING.
pub(super) const ACK: u8 = 0x1;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;

const HEAD: usize = 9;

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses the first frame, and returns it with its length. `None` while incomplete.
    pub(super) fn first(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let head = bytes.first_chunk::<HEAD>()?;
        let [l0, l1, l2, kind, flags, stream @ ..] = *head;
        let end = HEAD + u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let payload = bytes.get(HEAD..end)?;
        Some((Self { kind, flags, stream: u32::from_be_bytes(stream) & (u32::MAX >> 1), payload }, end))
    }

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Increment of a WINDOW_UPDATE.
    pub(super) fn increment(&self) -> i64 {
        self.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes).into())
    }

    /// Identifiers and values of a SETTINGS frame.
    pub(super) fn settings(&self) -> impl Iterator<Item = (u16, u32)> {
        let settings = self.payload.as_chunks::<6>().0.iter();
        settings.map(|&[n0, n1, value @ ..]| (u16::from_be_bytes([n0, n1]), u32::from_be_bytes(value)))
    }
}

/// Appends a frame to `out`; the payload is shorter than 16 MB.
pub(super) fn push(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}
