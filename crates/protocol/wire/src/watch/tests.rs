use std::{future::poll_fn, task::Poll, time::Duration};

use fairmesh_listen::{Acceptor, Limits, Memory};
use fairmesh_model::StoreId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{Instant, timeout},
};
use tonic::{Code, Status};

use super::*;
use crate::{
    handshake::{ConnectError, Hello},
    transport::Address,
    v1::{self, watch_request, watch_response},
};

const BOUND: Duration = Duration::from_secs(20);

fn nowhere() -> Address {
    "127.0.0.1:1".parse().unwrap()
}

fn hello(version: u32) -> Hello {
    Hello { version, store: Some(StoreId(7)), location: None, software: "server".into() }
}

/// Performs the steps of a server before it passes the connection on.
async fn accept(mut socket: DuplexStream) -> WatchServer<DuplexStream> {
    let mut preamble = [0; 8];
    socket.read_exact(&mut preamble).await.unwrap();
    assert_eq!(preamble, PREAMBLE);
    WatchServer::accept(socket, None).await.unwrap().0
}

/// Both sides of a watch with a negotiated version.
async fn watch(buffer: usize) -> (Watch<DuplexStream>, WatchServer<DuplexStream>) {
    let (near, far) = duplex(buffer);
    let server = async {
        let mut watched = accept(far).await;
        watched.send_hello(hello(1));
        sent(&mut watched).await;
        watched
    };
    let at = nowhere();
    let (watch, watched) = tokio::join!(Watch::handshake(near, &at, "reader"), server);
    (watch.unwrap(), watched)
}

async fn sent(watched: &mut WatchServer<DuplexStream>) {
    poll_fn(|cx| watched.poll_flush(cx)).await.unwrap();
}

fn delta(bytes: usize) -> v1::WatchResponse {
    let put = v1::Entry { key: "/a/1".into(), value: vec![7; bytes].into(), revision: 3 };
    let delta = v1::Delta { puts: vec![put], ..v1::Delta::default() };
    v1::WatchResponse { kind: Some(watch_response::Kind::Delta(delta)), more: false }
}

#[tokio::test]
async fn watch_messages_arrive_whole_over_single_byte_writes() {
    let (mut watch, mut watched) = watch(1).await;
    assert_eq!(watch.hello(), &hello(1));
    let message = delta(100);
    watched.send(frame(&message));
    watched.send(frame(&message));
    let sending = async { sent(&mut watched).await };
    let taking = async { (watch.next().await.unwrap(), watch.next().await.unwrap()) };
    let ((), got) = timeout(BOUND, async { tokio::join!(sending, taking) }).await.unwrap();
    assert_eq!(got, (message.clone(), message));
    let ask = v1::WatchRequest { kind: Some(watch_request::Kind::Unsubscribe("/a/".into())) };
    watch.send(&ask);
    let received = tokio::select! {
        received = poll_fn(|cx| watched.poll_request(cx)) => received.unwrap(),
        response = watch.next() => panic!("{response:?}"),
    };
    assert_eq!(received, ask);
}

#[tokio::test]
async fn watch_client_receives_status_that_ended_watch() {
    let (mut watch, watched) = watch(1024).await;
    watched.end(&Status::resource_exhausted("too much")).await;
    let why = watch.next().await.unwrap_err();
    assert_eq!((why.code(), why.message()), (Code::ResourceExhausted, "too much"));
    let gone = watch.next().await.unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable);
}

#[tokio::test]
async fn unsupported_watch_version_is_distinguished_from_foreign_server() {
    let over = async |server: fn(WatchServer<DuplexStream>) -> tokio::task::JoinHandle<()>| {
        let (near, far) = duplex(1024);
        let serving = tokio::spawn(async move { server(accept(far).await).await.unwrap() });
        let error = Watch::handshake(near, &nowhere(), "reader").await.unwrap_err();
        serving.await.unwrap();
        error
    };
    let refusing = over(|watched| {
        tokio::spawn(async move { watched.end(&Status::failed_precondition("upgrade the caller")).await })
    });
    let error = refusing.await;
    assert!(
        matches!(&error, ConnectError::Version { reason, .. } if reason == "upgrade the caller"),
        "{error}"
    );
    let newer = over(|mut watched| {
        watched.send_hello(hello(9));
        tokio::spawn(async move { sent(&mut watched).await })
    });
    let error = newer.await;
    assert!(
        matches!(&error, ConnectError::Version { .. }) && error.to_string().contains("version 9"),
        "{error}"
    );
    let error = over(|watched| tokio::spawn(async { drop(watched) })).await;
    assert!(matches!(error, ConnectError::NoHello { .. }), "{error}");
}

#[tokio::test]
async fn oversized_watch_frame_ends_watch_before_allocation() {
    let (mut near, far) = duplex(64);
    let accepting = tokio::spawn(WatchServer::accept(far, None));
    near.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    let refused = timeout(BOUND, accepting).await.unwrap().unwrap().unwrap_err();
    assert!(refused.message().contains("4294967295 bytes"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn idle_watch_stays_open_and_both_sides_detect_vanished_peer() {
    let (mut reader, mut server) = watch(1024).await;
    let quiet = async {
        tokio::select! {
            response = reader.next() => panic!("{response:?}"),
            _ = async { loop {
                // As sessions do: first read requests, then send responses.
                poll_fn(|cx| {
                    assert!(server.poll_request(cx).is_pending(), "there is no request");
                    let _ = server.poll_flush(cx);
                    Poll::<()>::Pending
                }).await;
            } } => {}
        }
    };
    assert!(timeout(Duration::from_secs(3600), quiet).await.is_err(), "it lasts");

    let vanished = Instant::now();
    let noticed =
        timeout(BOUND, reader.next()).await.expect("the client probes and gets no response").unwrap_err();
    assert_eq!(noticed.code(), Code::Unavailable);
    let waited = vanished.elapsed();
    assert!(waited >= KEEP_ALIVE.1 && waited <= KEEP_ALIVE.0 + KEEP_ALIVE.1, "{waited:?}");

    let (_silent, mut server) = watch(1024).await;
    let greeted = Instant::now();
    assert!(
        poll_fn(|cx| server.poll_request(cx)).await.is_err(),
        "the server waits for a probe that does not come"
    );
    assert!(greeted.elapsed() >= KEEP_ALIVE.0 + KEEP_ALIVE.1, "time to probe and to time out");
}

#[tokio::test(start_paused = true)]
async fn watch_request_sent_too_slowly_ends_watch() {
    let (mut near, far) = duplex(1024);
    near.write_all(&PREAMBLE).await.unwrap();
    let hello = v1::HelloRequest {
        oldest_version: 1,
        newest_version: 1,
        software: String::new(),
        ..Default::default()
    };
    let hello = v1::WatchRequest { kind: Some(watch_request::Kind::Hello(hello)) };
    near.write_all(&encode_frame(&hello)).await.unwrap();
    let mut server = accept(far).await;
    let began = Instant::now();
    let trickles = async {
        near.write_all(&60_000_u32.to_be_bytes()).await.unwrap();
        loop {
            // Frequent enough to count as activity.
            tokio::time::sleep(Duration::from_secs(3)).await;
            if near.write_all(&[0]).await.is_err() {
                return;
            }
        }
    };
    let why = tokio::select! {
        received = poll_fn(|cx| server.poll_request(cx)) => received.unwrap_err(),
        () = trickles => panic!("it was closed"),
    };
    assert_eq!(why.code(), Code::DeadlineExceeded, "{why}");
    let waited = began.elapsed();
    assert!(waited >= FRAME_TIMEOUT && waited <= FRAME_TIMEOUT + PEER_TIMEOUT, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn watch_ends_if_watcher_never_reads() {
    let (mut near, far) = duplex(1024);
    near.write_all(&PREAMBLE).await.unwrap();
    let hello = v1::HelloRequest {
        oldest_version: 1,
        newest_version: 1,
        software: String::new(),
        ..Default::default()
    };
    let hello = v1::WatchRequest { kind: Some(watch_request::Kind::Hello(hello)) };
    near.write_all(&encode_frame(&hello)).await.unwrap();
    let mut server = accept(far).await;
    let began = Instant::now();
    server.send(frame(&delta(10_000)));
    let probes = async {
        loop {
            near.write_all(&encode_frame(&())).await.unwrap();
            tokio::time::sleep(KEEP_ALIVE.0).await;
        }
    };
    let serving = poll_fn(|cx| {
        assert!(server.poll_request(cx).is_pending(), "it sends probes");
        server.poll_flush(cx)
    });
    let why = tokio::select! {
        flushed = timeout(2 * WRITE_TIMEOUT, serving) => flushed.expect("it ends").unwrap_err(),
        () = probes => unreachable!("it probes without end"),
    };
    assert_eq!(why.code(), Code::DeadlineExceeded, "{why}");
    assert!(began.elapsed() >= WRITE_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn large_watch_request_claims_connection_memory_until_complete() {
    const MAX: usize = 16 << 20;
    let acceptor = Acceptor::new("test", Limits::calls(), Memory::default());
    let stream = acceptor.accept(|_| Poll::Ready(Ok(duplex(1).0))).await;
    let connection = stream.connection().unwrap();
    let request = v1::WatchRequest { kind: Some(watch_request::Kind::Unsubscribe("a".repeat(60_000))) };
    let request = encode_frame(&request);
    let hello = v1::HelloRequest {
        oldest_version: 1,
        newest_version: 1,
        software: String::new(),
        ..Default::default()
    };
    let hello = encode_frame(&v1::WatchRequest { kind: Some(watch_request::Kind::Hello(hello)) });

    let (mut near, far) = duplex(64 * 1024);
    near.write_all(&hello).await.unwrap();
    let (mut server, _) = WatchServer::accept(far, Some(connection.clone())).await.unwrap();
    near.write_all(&request[..100]).await.unwrap();
    assert!(poll_fn(|cx| Poll::Ready(server.poll_request(cx).is_pending())).await);
    assert!(connection.claim_message(MAX).is_none(), "the request holds some");
    near.write_all(&request[100..]).await.unwrap();
    assert!(poll_fn(|cx| server.poll_request(cx)).await.is_ok());

    let _all = connection.claim_message(MAX).expect("it is complete");
    near.write_all(&request[..100]).await.unwrap();
    let why = poll_fn(|cx| server.poll_request(cx)).await.unwrap_err();
    assert_eq!(why.code(), Code::ResourceExhausted, "{why}");
}
