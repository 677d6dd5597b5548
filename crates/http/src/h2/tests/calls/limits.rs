//! As many calls are made at a time as the server allows.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_place_is_free_again_when_a_call_has_ended_or_was_given_up() {
    let mut server = Server::with(&[(MAX_CONCURRENT_STREAMS, 2)]).await;
    let (first, second) = (server.got(1).await, server.got(3).await);
    assert_eq!(server.place(), Place::Taken);
    server.send(&answer(1, "200", &[], true)).await;
    answered(first).await;
    assert_eq!(server.place(), Place::Free);
    let third = server.got(5).await;
    assert_eq!(server.place(), Place::Taken);
    second.abort();
    server.hears([Heard::Reset(3, Reason::CANCEL)]).await;
    assert_eq!(server.place(), Place::Free);
    server.send(&reset(5, Reason::REFUSED_STREAM)).await;
    assert_eq!(lost(third).await, Lost::Reset(Reason::REFUSED_STREAM));
    server.goes_on(7).await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_are_allowed_until_the_server_says_otherwise() {
    let (io, far) = duplex(1 << 20);
    let connection = Outbound::new(far);
    let session = connection.session();
    let driving = tokio::spawn(connection);
    let mut server = Server { wire: Wire::new(io), session, driving };
    let calls: Vec<_> = (0..100).map(|_| server.call(&Method::GET, whole(""))).collect();
    assert_eq!(server.place(), Place::Taken);
    drop(calls);
    for (settings, limit) in [
        (&[][..], u32::MAX),
        (&[(MAX_CONCURRENT_STREAMS, 7), (MAX_CONCURRENT_STREAMS, 3)], 3),
        (&[(INITIAL_WINDOW_SIZE, 100)], 3),
        (&[(MAX_CONCURRENT_STREAMS, 0)], 0),
    ] {
        server.send(&[set(settings), said(PING, 0, 0, [0; 8])].concat()).await;
        let mut heard = BytesMut::new();
        while !heard.ends_with(&said(PING, ACK, 0, [0; 8])) {
            in_time(server.wire.io.read_buf(&mut heard)).await.unwrap();
        }
        assert_eq!(lock(&server.session).limit(), limit);
    }
    assert_eq!(server.place(), Place::Taken);
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_begin_while_much_waits_that_the_server_does_not_take() {
    let mut server = Server::new().await;
    let authority = Authority::from_static("one.shop");
    let headers = HeaderMap::from_iter([("x-a".parse().unwrap(), "b".repeat(30_000).parse().unwrap())]);
    let ask = Ask { method: &Method::GET, authority: &authority, path: "/p?q", headers: &headers };
    let mut calls = Vec::new();
    while server.place() == Place::Free {
        assert!(calls.len() < 100);
        calls.push(Call::<Body>::begin(&server.session, lock(&server.session), &ask, true));
        tokio::task::yield_now().await;
    }
    assert_eq!(server.place(), Place::Blocked);
    for _ in &calls {
        assert!(matches!(server.hear().await, Heard::Head { .. }));
    }
    assert_eq!(server.place(), Place::Free);
}
