//! Counts the streams that a peer opens, before the HTTP/2 server has read them.

/// Length of a frame header in bytes (RFC 9113 §4.1).
const FRAME_HEADER_LEN: usize = 9;
/// Type of the frame that opens a stream (RFC 9113 §6.2).
const HEADERS: u8 = 1;

/// Follows the frames of a connection without storing their payloads.
#[derive(Debug, Default)]
pub(crate) struct Http2Frames {
    /// Received part of a frame header, and the length of that part in bytes.
    header: ([u8; FRAME_HEADER_LEN], usize),
    /// Remaining bytes of the payload.
    left: usize,
    last_stream: u32,
}

impl Http2Frames {
    /// Reads the next bytes after the preface, until they have opened `max` streams; trailers open none. Returns how
    /// many bytes were read, at least one, and how many streams they open.
    pub(crate) fn read(&mut self, bytes: &[u8], max: u32) -> (usize, u32) {
        let (mut read, mut opened) = (0, 0);
        loop {
            let skipped = self.left.min(bytes.len() - read);
            (self.left, read) = (self.left - skipped, read + skipped);
            let (header, filled) = &mut self.header;
            let some = (bytes.len() - read).min(FRAME_HEADER_LEN - *filled);
            header[*filled..*filled + some].copy_from_slice(&bytes[read..read + some]);
            (*filled, read) = (*filled + some, read + some);
            if *filled < FRAME_HEADER_LEN {
                return (read, opened);
            }
            *filled = 0;
            let [a, b, c, kind, _, stream @ ..] = *header;
            self.left = u32::from_be_bytes([0, a, b, c]) as usize;
            // The first bit is reserved.
            let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
            if kind == HEADERS && stream > self.last_stream {
                self.last_stream = stream;
                opened += 1;
                if opened >= max {
                    return (read, opened);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        [&length[1..], &[kind, 4], &stream.to_be_bytes(), &vec![1; payload]].concat()
    }

    #[test]
    fn new_http2_streams_are_counted_across_split_reads() {
        let frames = [
            frame(4, 0, 6),
            frame(1, 1, 7),
            frame(0, 1, 300),
            frame(1, 1, 0),
            frame(1, 3, 2),
            frame(8, 0, 4),
        ];
        let bytes = frames.concat();
        for piece in [1, 2, 5, 9, 10, 100, bytes.len()] {
            let mut read = Http2Frames::default();
            let opened: u32 = bytes.chunks(piece).map(|chunk| read.read(chunk, 9).1).sum();
            assert_eq!(opened, 2, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn reading_stops_at_last_admitted_http2_stream() {
        let bytes = [frame(4, 0, 6), frame(1, 1, 7), frame(1, 3, 2)].concat();
        let mut frames = Http2Frames::default();
        assert_eq!(frames.read(&bytes, 1), (24, 1), "to the end of the header of the first");
        assert_eq!(frames.read(&bytes[24..], 1), (16, 1));
        assert_eq!(frames.read(&bytes[40..], 1), (2, 0));
    }
}
