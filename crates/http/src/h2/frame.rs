//! Frames (RFC 9113 4.1).

/// What a client begins with (RFC 9113 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0x0;
pub(super) const HEADERS: u8 = 0x1;
pub(super) const PRIORITY: u8 = 0x2;
pub(super) const RST_STREAM: u8 = 0x3;
pub(super) const SETTINGS: u8 = 0x4;
pub(super) const PUSH_PROMISE: u8 = 0x5;
pub(super) const PING: u8 = 0x6;
pub(super) const GOAWAY: u8 = 0x7;
pub(super) const WINDOW_UPDATE: u8 = 0x8;
pub(super) const CONTINUATION: u8 = 0x9;

/// Of SETTINGS and PING.
pub(super) const ACK: u8 = 0x1;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
/// Of HEADERS: what RFC 7540 had of an order among streams comes first.
pub(super) const PRIORITIZED: u8 = 0x20;

/// The bytes before what a frame carries.
pub(super) const HEAD: usize = 9;
/// The longest payload that everybody takes (RFC 9113 4.2), and the longest that is taken here.
pub(super) const USUAL: usize = 16 * 1024;
/// The highest number of a stream, and the largest window.
pub(super) const HIGHEST: u32 = (1 << 31) - 1;

/// What comes before the payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    /// The head that these bytes begin with, once it is there.
    pub(super) fn first(bytes: &[u8]) -> Option<Self> {
        let [l0, l1, l2, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        Some(Self { length, kind, flags, stream: number(stream) })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn bytes(&self) -> [u8; HEAD] {
        let [_, l0, l1, l2] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }
}

/// Four bytes without the first bit, which means nothing.
pub(super) fn number(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & HIGHEST
}

/// Writes a frame with a payload of a few bytes.
pub(super) fn push(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    Head { length: payload.len(), kind, flags, stream }.write(out);
    out.extend_from_slice(payload);
}

/// What a frame carries, without its padding; `None` where there is more padding than frame.
pub(super) fn unpadded<'a>(head: &Head, payload: &'a [u8]) -> Option<&'a [u8]> {
    if !head.has(PADDED) {
        return Some(payload);
    }
    let (padding, rest) = payload.split_first()?;
    rest.len().checked_sub(usize::from(*padding)).map(|end| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = Head { length: 0x01_02_03, kind: DATA, flags: END_STREAM, stream: 0x7fff_fff1 };
        let mut out = Vec::new();
        head.write(&mut out);
        assert_eq!(out, [1, 2, 3, 0, 1, 0x7f, 0xff, 0xff, 0xf1]);
        assert_eq!(Head::first(&out), Some(head));
        assert_eq!(Head::first(&out[..8]), None);
        out[5] = 0xff;
        assert_eq!(Head::first(&out), Some(head), "the first bit of a stream means nothing");
    }

    #[test]
    fn padding_is_taken_off() {
        let padded = Head { length: 0, kind: DATA, flags: PADDED, stream: 1 };
        assert_eq!(unpadded(&padded, &[2, 7, 8, 0, 0]), Some(&[7, 8][..]));
        assert_eq!(unpadded(&padded, &[2, 0, 0]), Some(&[][..]));
        assert_eq!(unpadded(&padded, &[3, 0, 0]), None);
        assert_eq!(unpadded(&padded, &[]), None);
        assert_eq!(unpadded(&Head { flags: 0, ..padded }, &[3, 0]), Some(&[3, 0][..]));
    }
}
