//! How a response ends that times out in the middle.
//!
//! HTTP cannot express a timeout in the middle, so the connection or the stream is aborted. A gRPC call ends with a
//! status: in trailers or, for gRPC-Web, in a last frame of the body if the timeout is not in the middle of a message.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use tonic::metadata::BinaryMetadataValue;

use crate::fault::Fault;
use fairmesh_headers::decode_base64;

/// Length of a gRPC and gRPC-Web frame prefix: flags and the message length.
const PREFIX_LEN: usize = 5;
/// Flag of a gRPC-Web frame that holds trailers.
const TRAILERS: u8 = 0x80;

/// How a body that times out ends.
#[derive(Debug, Default)]
pub(super) enum TimeoutConclusion {
    /// The body ends with the fault.
    #[default]
    Fault,
    /// The body ends with the fault, in which a tonic client may look for a status.
    FaultForTonic,
    /// The body ends with trailers that hold its status.
    Trailers,
    /// The body ends with a trailers frame, between two messages. Boxed, since it is rare.
    Web(Box<WebFrames>),
}

/// Position within the frames of a gRPC-Web body.
#[derive(Debug, Default)]
pub(super) struct WebFrames {
    /// Whether the whole body is base64-encoded.
    is_text: bool,
    /// Digits of an incomplete base64 group.
    group: Vec<u8>,
    /// The incomplete prefix of a frame.
    prefix: Vec<u8>,
    /// Remaining bytes of the frame's message.
    left: u32,
    /// Whether trailers or malformed bytes have arrived.
    is_over: bool,
}

impl TimeoutConclusion {
    /// Follows the frames of the body.
    pub(super) fn track(&mut self, frame: &Frame<Bytes>) {
        if let (Self::Web(frames), Some(data)) = (self, frame.data_ref()) {
            frames.track(data);
        }
    }

    /// Returns the last frame of the body with the status of the fault; `None` if the protocol has no such frame.
    pub(super) fn frame(self, fault: &Fault) -> Option<Frame<Bytes>> {
        match self {
            Self::Fault | Self::FaultForTonic => None,
            Self::Trailers => Some(Frame::trailers(fault.grpc_headers())),
            Self::Web(frames) => frames.trailers_frame(&fault.grpc_headers()).map(Frame::data),
        }
    }
}

impl WebFrames {
    pub(super) fn new(is_text: bool) -> Self {
        Self { is_text, ..Self::default() }
    }

    fn track(&mut self, data: &[u8]) {
        if !self.is_text {
            return self.track_bytes(data);
        }
        for digit in data {
            self.group.push(*digit);
            if self.group.len() == 4 {
                match decode_base64(&self.group, &mut [0; 3]) {
                    Some(bytes) => self.track_bytes(bytes),
                    None => self.is_over = true,
                }
                self.group.clear();
            }
        }
    }

    fn track_bytes(&mut self, mut data: &[u8]) {
        while !data.is_empty() && !self.is_over {
            if self.left > 0 {
                let passed = data.len().min(self.left as usize);
                self.left -= passed as u32;
                data = &data[passed..];
                continue;
            }
            let missing = data.len().min(PREFIX_LEN - self.prefix.len());
            self.prefix.extend_from_slice(&data[..missing]);
            data = &data[missing..];
            if let [flags, length @ ..] = &self.prefix[..]
                && let Some(length) = length.first_chunk()
            {
                self.is_over = flags & TRAILERS != 0;
                self.left = u32::from_be_bytes(*length);
                self.prefix.clear();
            }
        }
    }

    /// Encodes these trailers as a frame, if a frame may follow at this position.
    fn trailers_frame(&self, trailers: &HeaderMap) -> Option<Bytes> {
        if self.is_over || self.left > 0 || !self.prefix.is_empty() || !self.group.is_empty() {
            return None;
        }
        let mut text = Vec::new();
        for (name, value) in trailers {
            text.extend_from_slice(name.as_str().as_bytes());
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        let mut frame = BytesMut::with_capacity(PREFIX_LEN + text.len());
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
    use crate::fault::FaultKind;

    const MESSAGE: &[u8] = b"\x00\x00\x00\x00\x03tea";

    /// Returns how a body ends that begins with these bytes, received in pieces of this length.
    fn ends(is_text: bool, body: &[u8], piece: usize) -> Option<Bytes> {
        let mut conclusion = TimeoutConclusion::Web(Box::new(WebFrames::new(is_text)));
        for piece in body.chunks(piece) {
            conclusion.track(&Frame::data(Bytes::copy_from_slice(piece)));
        }
        let fault = Fault::new(FaultKind::Deadline, "too late");
        Some(conclusion.frame(&fault)?.into_data().unwrap())
    }

    #[test]
    fn grpc_web_timeout_status_is_appended_only_between_messages() {
        let status = b"\x80\x00\x00\x00\x2bgrpc-status:4\r\ngrpc-message:too%20late\r\n";
        let status = [&status[..4], &[status.len() as u8 - 5], &status[5..]].concat();
        let body = [MESSAGE, MESSAGE].concat();
        for length in 0..=body.len() {
            let ended = ends(false, &body[..length], 3);
            let expected = length.is_multiple_of(MESSAGE.len()).then_some(&status[..]);
            assert_eq!(ended.as_deref(), expected, "after {length} bytes");
        }
        assert_eq!(ends(false, &[&body, &status[..]].concat(), 7), None, "a status was sent already");
    }

    #[test]
    fn timeout_status_of_base64_body_is_base64_encoded() {
        // Two messages, each encoded separately, as servers do.
        let body = b"AAAAAAN0ZWE=AAAAAAN0ZWE=";
        for length in 0..=body.len() {
            let ended = ends(true, &body[..length], 5);
            assert_eq!(ended.is_some(), length.is_multiple_of(12), "after {length} digits");
            if let Some(ended) = ended {
                let mut room = [0; 64];
                let frame = decode_base64(&ended, &mut room).unwrap();
                assert!(
                    frame.starts_with(b"\x80\x00\x00\x00") && frame[5..].starts_with(b"grpc-status:4\r\n")
                );
                assert!(ended.len().is_multiple_of(4));
            }
        }
    }
}
