use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, Frame, GOAWAY, HEADERS, PADDED, PING, SETTINGS, WINDOW_UPDATE, push,
};

/// Initial flow control window for the other side, of the connection and of each stream.
const WINDOW: u32 = 1 << 24;
const FIRST_WINDOW: u32 = 65_535;
/// RFC 9113 6.5.2.
const HEADER_TABLE_SIZE: u16 = 0x1;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
/// Size of the dynamic table for which headers are encoded.
const TABLE: u32 = 4096;
/// Maximum body size: one frame, and within the window of a stream.
pub(super) const LARGEST: usize = 16 * 1024;

/// Maximum number of concurrent calls on a connection.
const STREAMS: u32 = 64;
/// Size of the read buffer, enough for the messages of a few dozen calls.
pub(super) const ROOM: usize = 256 * 1024;

/// State of one side of a connection, common to clients and servers.
#[derive(Debug)]
pub(super) struct Link {
    /// Bytes to write.
    pub(super) out: Vec<u8>,
    /// Connection window: bytes of bodies that the other side still accepts.
    pub(super) room: i64,
    /// Bytes of received bodies that are not yet returned by a WINDOW_UPDATE.
    taken: u32,
}

impl Link {
    pub(super) fn new(preface: &[u8]) -> Self {
        let mut out = preface.to_vec();
        let mut window = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        window.extend_from_slice(&WINDOW.to_be_bytes());
        push(&mut out, SETTINGS, 0, 0, &window);
        push(&mut out, WINDOW_UPDATE, 0, 0, &(WINDOW - FIRST_WINDOW).to_be_bytes());
        Self { out, room: FIRST_WINDOW.into(), taken: 0 }
    }

    /// Handles the connection-level effects of a frame.
    pub(super) fn hear(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        match frame.kind {
            DATA if !frame.is(PADDED) => self.took(frame.payload.len() as u32),
            HEADERS if frame.is(END_HEADERS) && !frame.is(PADDED) => {}
            DATA | HEADERS | CONTINUATION => {
                return Err("bodies have padding, or heads several frames".into());
            }
            SETTINGS if !frame.is(ACK) => {
                for (number, value) in frame.settings() {
                    let least = match number {
                        HEADER_TABLE_SIZE => TABLE,
                        INITIAL_WINDOW_SIZE => LARGEST as u32,
                        MAX_CONCURRENT_STREAMS => STREAMS,
                        _ => 0,
                    };
                    if value < least {
                        return Err(format!("setting {number} is {value}, and has to be {least}"));
                    }
                }
                push(&mut self.out, SETTINGS, ACK, 0, &[]);
            }
            PING if !frame.is(ACK) => push(&mut self.out, PING, ACK, 0, frame.payload),
            WINDOW_UPDATE if frame.stream == 0 => self.room += frame.increment(),
            GOAWAY => return Err("told to go away".into()),
            _ => {}
        }
        Ok(())
    }

    fn took(&mut self, bytes: u32) {
        self.taken += bytes;
        if self.taken > WINDOW / 2 {
            push(&mut self.out, WINDOW_UPDATE, 0, 0, &self.taken.to_be_bytes());
            self.taken = 0;
        }
    }
}

/// Handles all complete frames received so far, and removes them from the input.
pub(super) fn hear_all(
    bytes: &mut Vec<u8>,
    mut hear: impl FnMut(Frame<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut heard = 0;
    while let Some((frame, length)) = Frame::first(&bytes[heard..]) {
        hear(frame)?;
        heard += length;
    }
    bytes.drain(..heard);
    Ok(())
}
