//! How a response ends whose time runs out in the middle.
//!
//! HTTP has no words for that: the connection, or the stream, breaks off. A gRPC call ends with a status: in trailers, or, for
//! gRPC-Web, in a last frame of the body, where that is not in the middle of a message.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use tonic::metadata::BinaryMetadataValue;

use crate::Fault;
use fairmesh_headers::decode_base64;

/// What frames of gRPC and gRPC-Web begin with: flags, and the length of what follows.
const HEAD: usize = 5;
/// In the flags of a frame of gRPC-Web: it holds trailers.
const TRAILERS: u8 = 0x80;

/// How a body ends whose time runs out.
#[derive(Debug, Default)]
pub(super) enum Conclusion {
    /// With the fault.
    #[default]
    Fault,
    /// With trailers that hold its status.
    Trailers,
    /// With a frame of trailers in the body, between two messages. Boxed, since next to no response is this.
    Web(Box<WebFrames>),
}

/// How far a body of gRPC-Web has come in its frames.
#[derive(Debug, Default)]
pub(super) struct WebFrames {
    /// Whether all of it is in base64.
    is_text: bool,
    /// Digits of base64 that do not make a whole group yet.
    group: Vec<u8>,
    /// The beginning of a frame that has not come as a whole.
    head: Vec<u8>,
    /// Bytes of the frame's message that are to come.
    left: u32,
    /// Trailers, or what is no frame, have come.
    is_over: bool,
}

impl Conclusion {
    /// Sees what goes by.
    pub(super) fn see(&mut self, frame: &Frame<Bytes>) {
        if let (Self::Web(frames), Some(data)) = (self, frame.data_ref()) {
            frames.see(data);
        }
    }

    /// The last frame of the body, which says what went wrong; `None` where there are no words for it.
    pub(super) fn frame(self, fault: &Fault) -> Option<Frame<Bytes>> {
        match self {
            Self::Fault => None,
            Self::Trailers => Some(Frame::trailers(fault.grpc_headers())),
            Self::Web(frames) => frames.last(&fault.grpc_headers()).map(Frame::data),
        }
    }
}

impl WebFrames {
    pub(super) fn new(is_text: bool) -> Self {
        Self { is_text, ..Self::default() }
    }

    fn see(&mut self, data: &[u8]) {
        if !self.is_text {
            return self.see_bytes(data);
        }
        for digit in data {
            self.group.push(*digit);
            if self.group.len() == 4 {
                match decode_base64(&self.group, &mut [0; 3]) {
                    Some(bytes) => self.see_bytes(bytes),
                    None => self.is_over = true,
                }
                self.group.clear();
            }
        }
    }

    fn see_bytes(&mut self, mut data: &[u8]) {
        while !data.is_empty() && !self.is_over {
            if self.left > 0 {
                let passed = data.len().min(self.left as usize);
                self.left -= passed as u32;
                data = &data[passed..];
                continue;
            }
            let missing = data.len().min(HEAD - self.head.len());
            self.head.extend_from_slice(&data[..missing]);
            data = &data[missing..];
            if let [flags, length @ ..] = &self.head[..]
                && let Some(length) = length.first_chunk()
            {
                self.is_over = flags & TRAILERS != 0;
                self.left = u32::from_be_bytes(*length);
                self.head.clear();
            }
        }
    }

    /// The frame of these trailers, where one may follow.
    fn last(&self, trailers: &HeaderMap) -> Option<Bytes> {
        if self.is_over || self.left > 0 || !self.head.is_empty() || !self.group.is_empty() {
            return None;
        }
        let mut text = Vec::new();
        for (name, value) in trailers {
            text.extend_from_slice(name.as_str().as_bytes());
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        let mut frame = BytesMut::with_capacity(HEAD + text.len());
        frame.put_u8(TRAILERS);
        frame.put_u32(u32::try_from(text.len()).ok()?);
        frame.extend_from_slice(&text);
        if !self.is_text {
            return Some(frame.freeze());
        }
        let mut encoded = BytesMut::from(BinaryMetadataValue::from_bytes(&frame).as_encoded_bytes());
        while !encoded.len().is_multiple_of(4) {
            encoded.put_u8(b'=');
        }
        Some(encoded.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FaultKind;

    const MESSAGE: &[u8] = b"\x00\x00\x00\x00\x03tea";

    /// What ends a body that began so, in pieces of this length.
    fn ends(is_text: bool, body: &[u8], piece: usize) -> Option<Bytes> {
        let mut conclusion = Conclusion::Web(Box::new(WebFrames::new(is_text)));
        for piece in body.chunks(piece) {
            conclusion.see(&Frame::data(Bytes::copy_from_slice(piece)));
        }
        let fault = Fault::new(FaultKind::Deadline, "too late");
        Some(conclusion.frame(&fault)?.into_data().unwrap())
    }

    #[test]
    fn a_status_is_said_between_two_messages_and_nowhere_else() {
        let status = b"\x80\x00\x00\x00\x2bgrpc-status:4\r\ngrpc-message:too%20late\r\n";
        let status = [&status[..4], &[status.len() as u8 - 5], &status[5..]].concat();
        let body = [MESSAGE, MESSAGE].concat();
        for length in 0..=body.len() {
            let said = ends(false, &body[..length], 3);
            let expected = length.is_multiple_of(MESSAGE.len()).then_some(&status[..]);
            assert_eq!(said.as_deref(), expected, "after {length} bytes");
        }
        assert_eq!(ends(false, &[&body, &status[..]].concat(), 7), None, "a status was said already");
    }

    #[test]
    fn text_is_base64_of_the_same() {
        // Two messages, encoded each by itself, as servers do.
        let body = b"AAAAAAN0ZWE=AAAAAAN0ZWE=";
        for length in 0..=body.len() {
            let said = ends(true, &body[..length], 5);
            assert_eq!(said.is_some(), length.is_multiple_of(12), "after {length} digits");
            if let Some(said) = said {
                let mut room = [0; 64];
                let frame = decode_base64(&said, &mut room).unwrap();
                assert!(
                    frame.starts_with(b"\x80\x00\x00\x00") && frame[5..].starts_with(b"grpc-status:4\r\n")
                );
                assert!(said.len().is_multiple_of(4));
            }
        }
    }
}
