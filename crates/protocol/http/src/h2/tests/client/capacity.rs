//! The server limits concurrent calls.

use super::*;

#[tokio::test(start_paused = true)]
async fn http2_stream_capacity_returns_when_call_ends_or_is_cancelled() {
    let mut server = Server::with(&[(MAX_CONCURRENT_STREAMS, 2)]).await;
    let (first, second) = (server.get(1).await, server.get(3).await);
    assert_eq!(server.capacity(), Capacity::Full);
    server.send(&response_headers(1, "200", &[], true)).await;
    response_of(first).await;
    assert_eq!(server.capacity(), Capacity::Available);
    let third = server.get(5).await;
    assert_eq!(server.capacity(), Capacity::Full);
    second.abort();
    server.expect([Event::Reset(3, Reason::CANCEL)]).await;
    assert_eq!(server.capacity(), Capacity::Available);
    server.send(&rst_stream(5, Reason::REFUSED_STREAM)).await;
    assert_eq!(error_of(third).await, StreamError::Reset(Reason::REFUSED_STREAM));
    server.expect_alive(7).await;
}

#[tokio::test(start_paused = true)]
async fn at_most_100_http2_calls_begin_before_settings_frame() {
    let (io, far) = duplex(1 << 20);
    let connection = ClientConnection::new(far);
    let session = connection.session();
    let driving = tokio::spawn(connection);
    let mut server = Server { wire: Wire::new(io), session, driving };
    let calls: Vec<_> = (0..100).map(|_| server.call(&Method::GET, whole(""))).collect();
    assert_eq!(server.capacity(), Capacity::Full);
    drop(calls);
    for (settings, limit) in [
        (&[][..], u32::MAX),
        (&[(MAX_CONCURRENT_STREAMS, 7), (MAX_CONCURRENT_STREAMS, 3)], 3),
        (&[(INITIAL_WINDOW_SIZE, 100)], 3),
        (&[(MAX_CONCURRENT_STREAMS, 0)], 0),
    ] {
        server.send(&[settings_frame(settings), raw_frame(PING, 0, 0, [0; 8])].concat()).await;
        let mut event = BytesMut::new();
        while !event.ends_with(&raw_frame(PING, ACK, 0, [0; 8])) {
            in_time(server.wire.io.read_buf(&mut event)).await.unwrap();
        }
        assert_eq!(lock(&server.session).stream_limit(), limit);
    }
    assert_eq!(server.capacity(), Capacity::Full);
}

#[tokio::test(start_paused = true)]
async fn full_http2_send_buffer_blocks_new_calls() {
    let mut server = Server::new().await;
    let authority = Authority::from_static("one.shop");
    let headers = HeaderMap::from_iter([("x-a".parse().unwrap(), "b".repeat(30_000).parse().unwrap())]);
    let ask = RequestHead { method: &Method::GET, authority: &authority, path: "/p?q", headers: &headers };
    let mut calls = Vec::new();
    while server.capacity() == Capacity::Available {
        assert!(calls.len() < 100);
        calls.push(Call::<Body>::begin(&server.session, lock(&server.session), &ask, true));
        tokio::task::yield_now().await;
    }
    assert_eq!(server.capacity(), Capacity::Blocked);
    for _ in &calls {
        assert!(matches!(server.next_event().await, Event::Headers { .. }));
    }
    assert_eq!(server.capacity(), Capacity::Available);
}
