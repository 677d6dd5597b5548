//! Telling frames of HTTP/2 apart (RFC 9113 4.1) as they pass, without keeping any.

/// What a client begins with (RFC 9113 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;

/// A frame, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// It begins or ends a message, or is a piece of one.
    Carries,
    /// It is about the connection, or is empty.
    AsksNothing,
}

/// Where in a frame one side of a connection is.
#[derive(Debug)]
pub(super) struct Scan {
    at: At,
}

#[derive(Debug)]
enum At {
    /// So many bytes into the preface.
    Preface(usize),
    /// Bytes of a head.
    Head([u8; HEAD], usize),
    /// So many bytes before the next head.
    Payload(usize),
    /// In what is no HTTP/2.
    Beyond,
}

impl Scan {
    pub(super) fn of_client() -> Self {
        Self { at: At::Preface(0) }
    }

    pub(super) fn of_server() -> Self {
        Self { at: At::Head([0; HEAD], 0) }
    }

    /// Passes over bytes, and tells of each frame whose head is complete.
    pub(super) fn pass(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            let used = match &mut self.at {
                At::Beyond => return,
                At::Preface(seen) => {
                    let used = bytes.len().min(PREFACE.len() - *seen);
                    let (from, to) = (*seen, *seen + used);
                    self.at = match bytes[..used] == PREFACE[from..to] {
                        true if to == PREFACE.len() => At::Head([0; HEAD], 0),
                        true => At::Preface(to),
                        false => At::Beyond,
                    };
                    used
                }
                At::Head(head, have) => {
                    let used = bytes.len().min(HEAD - *have);
                    head[*have..*have + used].copy_from_slice(&bytes[..used]);
                    *have += used;
                    if *have == HEAD {
                        let [a, b, c, kind, flags, ..] = *head;
                        let length = u32::from_be_bytes([0, a, b, c]) as usize;
                        tell(what_for(kind, flags, length));
                        self.at = At::Payload(length);
                    }
                    used
                }
                At::Payload(0) => {
                    self.at = At::Head([0; HEAD], 0);
                    0
                }
                At::Payload(left) => {
                    let used = bytes.len().min(*left);
                    *left -= used;
                    used
                }
            };
            bytes = &bytes[used..];
        }
    }
}

fn what_for(kind: u8, flags: u8, length: usize) -> Frame {
    match kind {
        HEADERS => Frame::Carries,
        DATA if length > 0 || flags & END_STREAM != 0 => Frame::Carries,
        _ => Frame::AsksNothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(mut scan: Scan, pieces: &[&[u8]]) -> Vec<Frame> {
        let mut told = Vec::new();
        pieces.iter().for_each(|piece| scan.pass(piece, |frame| told.push(frame)));
        told
    }

    #[test]
    fn frames_are_told_apart_however_they_are_cut() {
        let frames: [&[u8]; 6] = [
            &[0, 0, 0, 4, 0, 0, 0, 0, 0],
            &[0, 0, 3, 1, 4, 0, 0, 0, 1, 0x82, 0x86, 0x84],
            &[0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 1],
            &[0, 0, 0, 0, 0, 0, 0, 0, 1],
            &[0, 0, 0, 0, END_STREAM, 0, 0, 0, 1],
            &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
        ];
        use Frame::{AsksNothing, Carries};
        let expected = [AsksNothing, Carries, Carries, AsksNothing, Carries, AsksNothing];
        let all = frames.concat();
        assert_eq!(told(Scan::of_server(), &[&all]), expected);
        let with_preface = [PREFACE, &all[..]].concat();
        let bytes: Vec<&[u8]> = with_preface.chunks(1).collect();
        assert_eq!(told(Scan::of_client(), &bytes), expected);
        let seven: Vec<&[u8]> = with_preface.chunks(7).collect();
        assert_eq!(told(Scan::of_client(), &seven), expected);
    }

    #[test]
    fn what_begins_otherwise_is_not_looked_at() {
        let upgraded = [b"GET / HTTP/1.1\r\n\r\n", &[0; 64][..]].concat();
        assert_eq!(told(Scan::of_client(), &[&upgraded]), []);
    }
}
