//! Frame headers and constants (RFC 9113 4.1).

/// The client connection preface (RFC 9113 3.4).
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

/// ACK flag of SETTINGS and PING.
pub(super) const ACK: u8 = 0x1;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
/// PRIORITY flag of HEADERS: the payload begins with the deprecated priority fields of RFC 7540.
pub(super) const PRIORITY_FLAG: u8 = 0x20;

/// Length of a frame header in bytes.
pub(super) const HEADER_LEN: usize = 9;
/// Maximum payload that every peer accepts (RFC 9113 4.2), in bytes. Larger frames are not accepted here either.
pub(super) const DEFAULT_FRAME_SIZE: usize = 16 * 1024;
/// The highest stream identifier; also the largest window, in bytes.
pub(super) const MAX_31_BIT: u32 = (1 << 31) - 1;

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHeader {
    /// Parses the frame header at the beginning of `bytes`. Returns `None` if it is incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let [l0, l1, l2, kind, flags, stream @ ..] = *bytes.first_chunk::<HEADER_LEN>()?;
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        Some(Self { length, kind, flags, stream: u31(stream) })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn bytes(&self) -> [u8; HEADER_LEN] {
        let [_, l0, l1, l2] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }
}

/// Decodes four bytes as a number, without the reserved first bit.
pub(super) fn u31(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & MAX_31_BIT
}

/// Writes a frame with a short payload.
pub(super) fn push(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    FrameHeader { length: payload.len(), kind, flags, stream }.write(out);
    out.extend_from_slice(payload);
}

/// Returns the payload without padding; `None` if the padding exceeds the frame.
pub(super) fn unpadded<'a>(head: &FrameHeader, payload: &'a [u8]) -> Option<&'a [u8]> {
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
    fn http2_frame_header_round_trips() {
        let head = FrameHeader { length: 0x01_02_03, kind: DATA, flags: END_STREAM, stream: 0x7fff_fff1 };
        let mut out = Vec::new();
        head.write(&mut out);
        assert_eq!(out, [1, 2, 3, 0, 1, 0x7f, 0xff, 0xff, 0xf1]);
        assert_eq!(FrameHeader::parse(&out), Some(head));
        assert_eq!(FrameHeader::parse(&out[..8]), None);
        out[5] = 0xff;
        assert_eq!(FrameHeader::parse(&out), Some(head), "the first bit of a stream identifier is reserved");
    }

    #[test]
    fn padding_of_http2_frames_is_removed() {
        let padded = FrameHeader { length: 0, kind: DATA, flags: PADDED, stream: 1 };
        assert_eq!(unpadded(&padded, &[2, 7, 8, 0, 0]), Some(&[7, 8][..]));
        assert_eq!(unpadded(&padded, &[2, 0, 0]), Some(&[][..]));
        assert_eq!(unpadded(&padded, &[3, 0, 0]), None);
        assert_eq!(unpadded(&padded, &[]), None);
        assert_eq!(unpadded(&FrameHeader { flags: 0, ..padded }, &[3, 0]), Some(&[3, 0][..]));
    }
}
