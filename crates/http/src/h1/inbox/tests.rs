use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::noop_waker_ref;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex, sink};

use super::*;
use crate::h1::Outbox;

const LENGTH: usize = 64 * 1024;

async fn stream(bytes: &[u8]) -> (DuplexStream, DuplexStream) {
    let (near, mut far) = duplex(1 << 20);
    far.write_all(bytes).await.unwrap();
    (near, far)
}

fn poll(inbox: &mut Inbox, io: &mut DuplexStream, due: usize) -> Poll<usize> {
    inbox.poll_read(io, due, &mut Context::from_waker(noop_waker_ref())).map(Result::unwrap)
}

/// Reads a large message.
async fn large(inbox: &mut Inbox) -> Bytes {
    let (mut io, _far) = stream(&[7; LENGTH]).await;
    assert_eq!(poll(inbox, &mut io, LENGTH), Poll::Ready(LENGTH), "in one read");
    let piece = inbox.split().freeze();
    assert!(poll(inbox, &mut io, 0).is_pending());
    piece
}

/// Reads a small message.
async fn small_of(byte: u8, inbox: &mut Inbox) -> Bytes {
    let (mut io, _far) = stream(&[byte; 18]).await;
    assert_eq!(poll(inbox, &mut io, 0), Poll::Ready(18));
    let piece = inbox.split().freeze();
    assert!(poll(inbox, &mut io, 0).is_pending());
    piece
}

fn spares() -> usize {
    LARGE.with_borrow(Vec::len)
}

#[tokio::test]
async fn connections_read_into_the_same_memory_one_after_the_other() {
    let (mut one, mut other) = (Inbox::default(), Inbox::default());
    let first = large(&mut one).await.as_ptr();
    assert_eq!(spares(), 1, "given back as soon as there is nothing to read");
    assert_eq!(large(&mut other).await.as_ptr(), first);
    assert_eq!(large(&mut one).await.as_ptr(), first);
    assert_eq!(spares(), 1);
}

#[tokio::test]
async fn what_is_still_on_its_way_is_not_read_over() {
    let (mut one, mut other) = (Inbox::default(), Inbox::default());
    let first = large(&mut one).await;
    let second = large(&mut other).await;
    assert_ne!(first.as_ptr(), second.as_ptr());
    assert!(first.len() == LENGTH && first.iter().all(|byte| *byte == 7));
    // Nor what is left of it, in the middle of a message.
    let (mut io, mut far) = stream(&[1; LENGTH]).await;
    assert_eq!(poll(&mut one, &mut io, 2 * LENGTH), Poll::Ready(LENGTH));
    let third = one.split_to(LENGTH - 1).freeze();
    far.write_all(&[2; LENGTH]).await.unwrap();
    assert_eq!(poll(&mut one, &mut io, LENGTH), Poll::Ready(LENGTH));
    assert!(third.iter().all(|byte| *byte == 1));
    assert!(one[0] == 1 && one[1..].iter().all(|byte| *byte == 2));
}

#[tokio::test]
async fn what_was_sent_gives_its_memory_back() {
    let mut inbox = Inbox::default();
    let piece = large(&mut inbox).await;
    let first = piece.as_ptr();
    let mut outbox = Outbox::default();
    outbox.follow(piece, b"");
    let sent = outbox.poll_flush(&mut sink(), &mut Context::from_waker(noop_waker_ref()));
    assert!(matches!(sent, Poll::Ready(Ok(()))));
    assert_eq!(large(&mut inbox).await.as_ptr(), first);
}

#[tokio::test]
async fn who_stalls_holds_little() {
    let mut inbox = Inbox::default();
    let (mut io, mut far) = stream(b"POST").await;
    assert_eq!(poll(&mut inbox, &mut io, LENGTH), Poll::Ready(4));
    assert!(poll(&mut inbox, &mut io, LENGTH).is_pending());
    assert!(inbox.capacity() <= LEAST_READ && &inbox[..] == b"POST");
    assert_eq!(spares(), 1);
    far.write_all(b" /").await.unwrap();
    assert_eq!(poll(&mut inbox, &mut io, LENGTH), Poll::Ready(2));
    assert_eq!(&inbox[..], b"POST /");
}

#[tokio::test]
async fn a_thread_keeps_so_much_and_no_more() {
    let mut inboxes: Vec<Inbox> = (0..2 * MOST_LARGE).map(|_| Inbox::default()).collect();
    let mut streams = Vec::new();
    for inbox in &mut inboxes {
        let (mut io, far) = stream(&[7; LENGTH]).await;
        assert_eq!(poll(inbox, &mut io, LENGTH), Poll::Ready(LENGTH));
        streams.push((io, far));
    }
    for inbox in &mut inboxes {
        inbox.clear();
        inbox.rest();
        assert_eq!(inbox.capacity(), 0);
    }
    assert_eq!(spares(), MOST_LARGE);
}

#[tokio::test]
async fn who_waits_for_the_next_small_message_has_no_memory() {
    let mut inboxes: Vec<Inbox> = (0..2 * MOST_SMALL).map(|_| Inbox::default()).collect();
    let mut streams = Vec::new();
    for inbox in &mut inboxes {
        let (mut io, far) = stream(b"GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(poll(inbox, &mut io, 0), Poll::Ready(18));
        streams.push((io, far));
    }
    assert_eq!(SMALL.with_borrow(Vec::len), 0);
    for (inbox, (io, _)) in inboxes.iter_mut().zip(&mut streams) {
        assert!(poll(inbox, io, 0).is_pending());
        assert_eq!(inbox.len(), 18, "what came is kept");
        inbox.clear();
        assert!(poll(inbox, io, 0).is_pending());
        assert_eq!(inbox.capacity(), 0);
    }
    assert_eq!(SMALL.with_borrow(Vec::len), MOST_SMALL, "a thread keeps so much and no more");
    SMALL.with_borrow(|spare| assert!(spare.iter().all(|piece| piece.capacity() == LEAST_READ)));
}

#[tokio::test]
async fn small_messages_are_read_into_the_same_memory_one_after_the_other() {
    let (mut one, mut other) = (Inbox::default(), Inbox::default());
    let (first, second) = (small_of(1, &mut one).await, small_of(2, &mut other).await);
    let places = [first.as_ptr(), second.as_ptr()];
    assert_ne!(places[0], places[1], "the first is still in use");
    assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2));
    assert_eq!(SMALL.with_borrow(Vec::len), 0);
    drop((first, second));
    for inbox in [&mut one, &mut other] {
        inbox.rest();
        assert_eq!(inbox.capacity(), 0);
    }
    assert_eq!(SMALL.with_borrow(Vec::len), 2);
    assert_eq!(small_of(3, &mut one).await.as_ptr(), places[1], "what was used last");
    assert_eq!(small_of(4, &mut other).await.as_ptr(), places[0]);
    assert_eq!(SMALL.with_borrow(Vec::len), 0);
}

#[tokio::test]
async fn memory_for_a_long_head_is_not_kept() {
    let mut inbox = Inbox::default();
    let (mut io, mut far) = stream(&[b'a'; LEAST_READ - 1]).await;
    assert_eq!(poll(&mut inbox, &mut io, 0), Poll::Ready(LEAST_READ - 1));
    far.write_all(&[b'b'; LEAST_READ]).await.unwrap();
    while inbox.len() < 2 * LEAST_READ - 1 {
        assert!(poll(&mut inbox, &mut io, 0).is_ready());
    }
    assert!(inbox[..LEAST_READ - 1].iter().all(|byte| *byte == b'a'));
    inbox.clear();
    assert!(poll(&mut inbox, &mut io, 0).is_pending());
    assert_eq!((inbox.capacity(), SMALL.with_borrow(Vec::len)), (0, 1), "the short piece that it began in");
}
