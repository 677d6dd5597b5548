//! Frames on a pipe, as whoever speaks to our side writes and reads them.

use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::timeout,
};

use super::super::{
    Reason,
    frame::{CONTINUATION, DATA, END_HEADERS, HEAD, Head, RST_STREAM, SETTINGS, USUAL, WINDOW_UPDATE, push},
};
use crate::hpack::{Decoder, Field};

/// One end of a connection, which says whatever it likes.
pub(super) struct Wire {
    pub(super) io: DuplexStream,
    came: BytesMut,
    pub(super) decoder: Decoder,
}

/// Nothing waits for ever: the clock goes on as soon as nobody has anything to do.
pub(super) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), what).await.expect("it hangs")
}

impl Wire {
    pub(super) fn new(io: DuplexStream) -> Self {
        Self { io, came: BytesMut::new(), decoder: Decoder::default() }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        in_time(self.io.write_all(bytes)).await.unwrap();
    }

    /// The next frame; `None` where the connection has ended.
    pub(super) async fn frame(&mut self) -> Option<(Head, Bytes)> {
        loop {
            if let Some(head) = Head::first(&self.came)
                && self.came.len() >= HEAD + head.length
            {
                self.came.advance(HEAD);
                return Some((head, self.came.split_to(head.length).freeze()));
            }
            self.came.reserve(USUAL);
            if in_time(self.io.read_buf(&mut self.came)).await.unwrap() == 0 {
                assert!(self.came.is_empty(), "a frame is not whole");
                return None;
            }
        }
    }

    /// The fields of a head, whose first frame this is.
    pub(super) async fn fields(&mut self, head: Head, payload: Bytes) -> Vec<Field> {
        let (mut block, mut is_whole) = (payload.to_vec(), head.has(END_HEADERS));
        while !is_whole {
            let (more, payload) = self.frame().await.unwrap();
            assert_eq!((more.kind, more.stream), (CONTINUATION, head.stream));
            block.extend_from_slice(&payload);
            is_whole = more.has(END_HEADERS);
        }
        let mut fields = Vec::new();
        self.decoder.decode(&block, |field| fields.push(field)).unwrap();
        fields
    }
}

pub(super) fn said(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out, kind, flags, stream, payload.as_ref());
    out
}

pub(super) fn set(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    said(SETTINGS, 0, 0, settings.iter().flat_map(one).collect::<Vec<u8>>())
}

pub(super) fn room(stream: u32, more: u32) -> Vec<u8> {
    said(WINDOW_UPDATE, 0, stream, more.to_be_bytes())
}

pub(super) fn reset(stream: u32, reason: Reason) -> Vec<u8> {
    said(RST_STREAM, 0, stream, reason.0.to_be_bytes())
}

/// So many bytes of a body, in frames as long as they may be.
pub(super) fn bytes(stream: u32, length: usize) -> Vec<u8> {
    vec![b'a'; length].chunks(USUAL).flat_map(|piece| said(DATA, 0, stream, piece)).collect()
}

/// Fields as they stand, short ones.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap() & 0x7f], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}
