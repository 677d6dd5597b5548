use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::noop_waker_ref;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex, sink};

use super::*;
use crate::http1::Outbox;

const LARGE: usize = 64 * 1024;

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
    let (mut io, _far) = stream(&[7; LARGE]).await;
    assert_eq!(poll(inbox, &mut io, LARGE), Poll::Ready(LARGE), "in one read");
    let piece = inbox.split().freeze();
    assert!(poll(inbox, &mut io, 0).is_pending());
    piece
}

fn spares() -> usize {
    SPARE.with_borrow(Vec::len)
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
    assert!(first.len() == LARGE && first.iter().all(|byte| *byte == 7));
    // Nor what is left of it, in the middle of a message.
    let (mut io, mut far) = stream(&[1; LARGE]).await;
    assert_eq!(poll(&mut one, &mut io, 2 * LARGE), Poll::Ready(LARGE));
    let third = one.split_to(LARGE - 1).freeze();
    far.write_all(&[2; LARGE]).await.unwrap();
    assert_eq!(poll(&mut one, &mut io, LARGE), Poll::Ready(LARGE));
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
    assert_eq!(poll(&mut inbox, &mut io, LARGE), Poll::Ready(4));
    assert!(poll(&mut inbox, &mut io, LARGE).is_pending());
    assert!(inbox.capacity() <= LEAST_READ && &inbox[..] == b"POST");
    assert_eq!(spares(), 1);
    far.write_all(b" /").await.unwrap();
    assert_eq!(poll(&mut inbox, &mut io, LARGE), Poll::Ready(2));
    assert_eq!(&inbox[..], b"POST /");
}

#[tokio::test]
async fn a_thread_keeps_so_much_and_no_more() {
    let mut inboxes: Vec<Inbox> = (0..2 * MOST_SPARE).map(|_| Inbox::default()).collect();
    let mut streams = Vec::new();
    for inbox in &mut inboxes {
        let (mut io, far) = stream(&[7; LARGE]).await;
        assert_eq!(poll(inbox, &mut io, LARGE), Poll::Ready(LARGE));
        streams.push((io, far));
    }
    for inbox in &mut inboxes {
        inbox.clear();
        inbox.rest();
        assert_eq!(inbox.capacity(), 0);
    }
    assert_eq!(spares(), MOST_SPARE);
}
