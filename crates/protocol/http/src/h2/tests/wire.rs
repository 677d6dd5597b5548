//! Reads and writes frames on a pipe, as the remote peer.

use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::timeout,
};

use super::super::{
    Reason,
    frame::{
        CONTINUATION, DATA, DEFAULT_FRAME_SIZE, END_HEADERS, FrameHeader, HEADER_LEN, RST_STREAM, SETTINGS,
        WINDOW_UPDATE, push,
    },
};
use crate::hpack::{Decoder, Field};

/// One end of a connection.
pub(super) struct Wire {
    pub(super) io: DuplexStream,
    came: BytesMut,
    pub(super) decoder: Decoder,
}

/// Fails after a timeout. The clock is paused, so a deadlock ends as soon as all tasks are idle.
pub(super) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), what).await.expect("a deadlock")
}

impl Wire {
    pub(super) fn new(io: DuplexStream) -> Self {
        Self { io, came: BytesMut::new(), decoder: Decoder::default() }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        in_time(self.io.write_all(bytes)).await.unwrap();
    }

    /// Returns the next frame; `None` at the end of the connection.
    pub(super) async fn frame(&mut self) -> Option<(FrameHeader, Bytes)> {
        loop {
            if let Some(head) = FrameHeader::parse(&self.came)
                && self.came.len() >= HEADER_LEN + head.length
            {
                self.came.advance(HEADER_LEN);
                return Some((head, self.came.split_to(head.length).freeze()));
            }
            self.came.reserve(DEFAULT_FRAME_SIZE);
            if in_time(self.io.read_buf(&mut self.came)).await.unwrap() == 0 {
                assert!(self.came.is_empty(), "an incomplete frame");
                return None;
            }
        }
    }

    /// Decodes the header block that begins with this frame.
    pub(super) async fn fields(&mut self, head: FrameHeader, payload: Bytes) -> Vec<Field> {
        let (mut header_block, mut is_whole) = (payload.to_vec(), head.has(END_HEADERS));
        while !is_whole {
            let (more, payload) = self.frame().await.unwrap();
            assert_eq!((more.kind, more.stream), (CONTINUATION, head.stream));
            header_block.extend_from_slice(&payload);
            is_whole = more.has(END_HEADERS);
        }
        let mut fields = Vec::new();
        self.decoder.decode(&header_block, |field| fields.push(field)).unwrap();
        fields
    }
}

pub(super) fn raw_frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out, kind, flags, stream, payload.as_ref());
    out
}

pub(super) fn settings_frame(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    raw_frame(SETTINGS, 0, 0, settings.iter().flat_map(one).collect::<Vec<u8>>())
}

pub(super) fn window_update(stream: u32, more: u32) -> Vec<u8> {
    raw_frame(WINDOW_UPDATE, 0, stream, more.to_be_bytes())
}

pub(super) fn rst_stream(stream: u32, reason: Reason) -> Vec<u8> {
    raw_frame(RST_STREAM, 0, stream, reason.0.to_be_bytes())
}

/// Encodes `length` bytes of a body, in frames of the maximum size.
pub(super) fn data_frames(stream: u32, length: usize) -> Vec<u8> {
    vec![b'a'; length]
        .chunks(DEFAULT_FRAME_SIZE)
        .flat_map(|piece| raw_frame(DATA, 0, stream, piece))
        .collect()
}

/// Encodes a header block of short literals.
pub(super) fn header_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap() & 0x7f], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}
