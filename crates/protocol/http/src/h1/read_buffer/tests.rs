use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::noop_waker_ref;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex, sink};

use super::*;
use crate::h1::WriteBuffer;

const LENGTH: usize = 64 * 1024;

async fn stream(bytes: &[u8]) -> (DuplexStream, DuplexStream) {
    let (near, mut far) = duplex(1 << 20);
    far.write_all(bytes).await.unwrap();
    (near, far)
}

fn poll(buffer: &mut ReadBuffer, io: &mut DuplexStream, due: usize) -> Poll<usize> {
    buffer.poll_read(io, due, &mut Context::from_waker(noop_waker_ref())).map(Result::unwrap)
}

/// Reads a large message.
async fn large(buffer: &mut ReadBuffer) -> Bytes {
    let (mut io, _far) = stream(&[7; LENGTH]).await;
    assert_eq!(poll(buffer, &mut io, LENGTH), Poll::Ready(LENGTH), "in one read");
    let piece = buffer.split().freeze();
    assert!(poll(buffer, &mut io, 0).is_pending());
    piece
}

/// Reads a small message.
async fn small_of(byte: u8, buffer: &mut ReadBuffer) -> Bytes {
    let (mut io, _far) = stream(&[byte; 18]).await;
    assert_eq!(poll(buffer, &mut io, 0), Poll::Ready(18));
    let piece = buffer.split().freeze();
    assert!(poll(buffer, &mut io, 0).is_pending());
    piece
}

fn spares() -> usize {
    LARGE_BUFFERS.with_borrow(Vec::len)
}

#[tokio::test]
async fn connections_reuse_one_large_read_buffer_in_turn() {
    let (mut one, mut other) = (ReadBuffer::default(), ReadBuffer::default());
    let first = large(&mut one).await.as_ptr();
    assert_eq!(spares(), 1, "returned when the socket is empty");
    assert_eq!(large(&mut other).await.as_ptr(), first);
    assert_eq!(large(&mut one).await.as_ptr(), first);
    assert_eq!(spares(), 1);
}

#[tokio::test]
async fn read_buffer_does_not_overwrite_bytes_in_use() {
    let (mut one, mut other) = (ReadBuffer::default(), ReadBuffer::default());
    let first = large(&mut one).await;
    let second = large(&mut other).await;
    assert_ne!(first.as_ptr(), second.as_ptr());
    assert!(first.len() == LENGTH && first.iter().all(|byte| *byte == 7));
    // The unread rest in the middle of a message is not overwritten either.
    let (mut io, mut far) = stream(&[1; LENGTH]).await;
    assert_eq!(poll(&mut one, &mut io, 2 * LENGTH), Poll::Ready(LENGTH));
    let third = one.split_to(LENGTH - 1).freeze();
    far.write_all(&[2; LENGTH]).await.unwrap();
    assert_eq!(poll(&mut one, &mut io, LENGTH), Poll::Ready(LENGTH));
    assert!(third.iter().all(|byte| *byte == 1));
    assert!(one[0] == 1 && one[1..].iter().all(|byte| *byte == 2));
}

#[tokio::test]
async fn dropping_bytes_returns_read_buffer_for_reuse() {
    let mut buffer = ReadBuffer::default();
    let piece = large(&mut buffer).await;
    let first = piece.as_ptr();
    let mut outbox = WriteBuffer::default();
    outbox.append(piece, b"");
    let sent = outbox.poll_flush(&mut sink(), &mut Context::from_waker(noop_waker_ref()));
    assert!(matches!(sent, Poll::Ready(Ok(()))));
    assert_eq!(large(&mut buffer).await.as_ptr(), first);
}

#[tokio::test]
async fn stalled_connection_holds_little_read_buffer_memory() {
    let mut buffer = ReadBuffer::default();
    let (mut io, mut far) = stream(b"POST").await;
    assert_eq!(poll(&mut buffer, &mut io, LENGTH), Poll::Ready(4));
    assert!(poll(&mut buffer, &mut io, LENGTH).is_pending());
    assert!(buffer.capacity() <= MIN_READ && &buffer[..] == b"POST");
    assert_eq!(spares(), 1);
    far.write_all(b" /").await.unwrap();
    assert_eq!(poll(&mut buffer, &mut io, LENGTH), Poll::Ready(2));
    assert_eq!(&buffer[..], b"POST /");
}

#[tokio::test]
async fn thread_keeps_bounded_number_of_read_buffers() {
    let mut inboxes: Vec<ReadBuffer> = (0..2 * MAX_LARGE_BUFFERS).map(|_| ReadBuffer::default()).collect();
    let mut streams = Vec::new();
    for buffer in &mut inboxes {
        let (mut io, far) = stream(&[7; LENGTH]).await;
        assert_eq!(poll(buffer, &mut io, LENGTH), Poll::Ready(LENGTH));
        streams.push((io, far));
    }
    for buffer in &mut inboxes {
        buffer.clear();
        buffer.release();
        assert_eq!(buffer.capacity(), 0);
    }
    assert_eq!(spares(), MAX_LARGE_BUFFERS);
}

#[tokio::test]
async fn idle_connection_holds_no_read_buffer() {
    let mut inboxes: Vec<ReadBuffer> = (0..2 * MAX_SMALL_BUFFERS).map(|_| ReadBuffer::default()).collect();
    let mut streams = Vec::new();
    for buffer in &mut inboxes {
        let (mut io, far) = stream(b"GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(poll(buffer, &mut io, 0), Poll::Ready(18));
        streams.push((io, far));
    }
    assert_eq!(SMALL_BUFFERS.with_borrow(Vec::len), 0);
    for (buffer, (io, _)) in inboxes.iter_mut().zip(&mut streams) {
        assert!(poll(buffer, io, 0).is_pending());
        assert_eq!(buffer.len(), 18, "unread bytes are kept");
        buffer.clear();
        assert!(poll(buffer, io, 0).is_pending());
        assert_eq!(buffer.capacity(), 0);
    }
    assert_eq!(SMALL_BUFFERS.with_borrow(Vec::len), MAX_SMALL_BUFFERS, "a thread keeps a bounded number");
    SMALL_BUFFERS.with_borrow(|spare| assert!(spare.iter().all(|piece| piece.capacity() == MIN_READ)));
}

#[tokio::test]
async fn connections_reuse_small_read_buffers_in_turn() {
    let (mut one, mut other) = (ReadBuffer::default(), ReadBuffer::default());
    let (first, second) = (small_of(1, &mut one).await, small_of(2, &mut other).await);
    let places = [first.as_ptr(), second.as_ptr()];
    assert_ne!(places[0], places[1], "the first is still in use");
    assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2));
    assert_eq!(SMALL_BUFFERS.with_borrow(Vec::len), 0);
    drop((first, second));
    for buffer in [&mut one, &mut other] {
        buffer.release();
        assert_eq!(buffer.capacity(), 0);
    }
    assert_eq!(SMALL_BUFFERS.with_borrow(Vec::len), 2);
    assert_eq!(small_of(3, &mut one).await.as_ptr(), places[1], "what was used last");
    assert_eq!(small_of(4, &mut other).await.as_ptr(), places[0]);
    assert_eq!(SMALL_BUFFERS.with_borrow(Vec::len), 0);
}

#[tokio::test]
async fn read_buffer_grown_for_long_headers_is_not_kept() {
    let mut buffer = ReadBuffer::default();
    let (mut io, mut far) = stream(&[b'a'; MIN_READ - 1]).await;
    assert_eq!(poll(&mut buffer, &mut io, 0), Poll::Ready(MIN_READ - 1));
    far.write_all(&[b'b'; MIN_READ]).await.unwrap();
    while buffer.len() < 2 * MIN_READ - 1 {
        assert!(poll(&mut buffer, &mut io, 0).is_ready());
    }
    assert!(buffer[..MIN_READ - 1].iter().all(|byte| *byte == b'a'));
    buffer.clear();
    assert!(poll(&mut buffer, &mut io, 0).is_pending());
    assert_eq!(
        (buffer.capacity(), SMALL_BUFFERS.with_borrow(Vec::len)),
        (0, 1),
        "the small buffer it began in"
    );
}
