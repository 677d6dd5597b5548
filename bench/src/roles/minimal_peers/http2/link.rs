use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, Frame, GOAWAY, HEADERS, PADDED, PING, SETTINGS, WINDOW_UPDATE, push,
};

/// What the other side may send at first, on a connection and on each stream.
const WINDOW: u32 = 1 << 24;
const FIRST_WINDOW: u32 = 65_535;
/// RFC 9113 6.5.2.
const HEADER_TABLE_SIZE: u16 = 0x1;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
/// The size of the dynamic table that headers are encoded for.
const TABLE: u32 = 4096;
/// The largest body there is: it is one frame, and fits into the window of a stream.
pub(super) const LARGEST: usize = 16 * 1024;

/// Calls at a time on a connection, at most.
const STREAMS: u32 = 64;
/// What is read at once: all that a few dozen calls have to say.
pub(super) const ROOM: usize = 256 * 1024;

/// One side of a connection, as both sides need it.
#[derive(Debug)]
pub(super) struct Link {
    /// What is to be written.
    pub(super) out: Vec<u8>,
    /// Bytes of bodies that the other side takes.
    pub(super) room: i64,
    /// Bytes of bodies that came since the other side heard of it.
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

    /// Sees to what a frame says to the connection.
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

/// Hears what has come of frames, and takes it away.
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
