//! What is no answer fails its call, and what makes no sense ends the connection.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_fails_its_call_alone() {
    let mut server = Server::new().await;
    let trailers = |flags, fields: &[(&str, &str)]| said(HEADERS, END_HEADERS | flags, 0, block(fields));
    let cases: [(&str, Vec<u8>); 14] = [
        ("no status", said(HEADERS, END_HEADERS, 0, block(&[("x", "y")]))),
        ("two of them", answer(0, "200", &[(":status", "200")], false)),
        ("a status that is none", answer(0, "2000", &[], false)),
        ("a request", answer(0, "200", &[(":path", "/")], false)),
        ("upper case", answer(0, "200", &[("X-A", "b")], false)),
        ("HTTP/1.1", answer(0, "200", &[("transfer-encoding", "chunked")], false)),
        ("two lengths", answer(0, "200", &[("content-length", "1"), ("content-length", "2")], false)),
        ("shorter than was said", answer(0, "200", &[("content-length", "1")], true)),
        ("another protocol", answer(0, "101", &[], false)),
        ("an end before the answer", answer(0, "100", &[], true)),
        ("data before a head", said(DATA, 0, 0, "tea")),
        (
            "longer than was said",
            [answer(0, "200", &[("content-length", "1")], false), said(DATA, 0, 0, "tea")].concat(),
        ),
        ("a body without one", [answer(0, "204", &[], false), said(DATA, 0, 0, "tea")].concat()),
        ("trailers that end nothing", [answer(0, "200", &[], false), trailers(0, &[("x", "y")])].concat()),
    ];
    for (n, (what, mut frames)) in cases.into_iter().enumerate() {
        let stream = 4 * n as u32 + 1;
        let called = server.got(stream).await;
        on_stream(&mut frames, stream);
        server.send(&frames).await;
        let lost = match outcome(called).await {
            Err(Unanswered::Lost(lost)) => lost,
            Ok((answer, _)) => read(answer).await.expect_err(what),
            other => panic!("{what}: {other:?}"),
        };
        assert_eq!(lost, Lost::Malformed(Reason::PROTOCOL_ERROR), "{what}");
        server.hears([Heard::Reset(stream, Reason::PROTOCOL_ERROR)]).await;
        server.goes_on(stream + 2).await;
    }
}

/// Says frames on this stream.
fn on_stream(mut frames: &mut [u8], stream: u32) {
    while let [l0, l1, l2, _, _, s0, s1, s2, s3, ..] = frames {
        [*s0, *s1, *s2, *s3] = stream.to_be_bytes();
        let length = u32::from_be_bytes([0, *l0, *l1, *l2]) as usize;
        frames = &mut frames[9 + length..];
    }
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_ends_the_connection_and_its_calls_know_why() {
    let ok = block(&[(":status", "200")]);
    let cases: [(&str, Vec<u8>, Reason); 13] = [
        ("a stream that nobody began", answer(9, "200", &[], true), Reason::PROTOCOL_ERROR),
        ("a server's stream", answer(2, "200", &[], true), Reason::PROTOCOL_ERROR),
        ("data of no stream", said(DATA, 0, 0, "tea"), Reason::PROTOCOL_ERROR),
        ("data of a stream that nobody began", said(DATA, 0, 7, "tea"), Reason::PROTOCOL_ERROR),
        (
            "a promise",
            said(PUSH_PROMISE, END_HEADERS, 1, [&[0, 0, 0, 2], &ok[..]].concat()),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "another frame in a head",
            [said(HEADERS, 0, 1, &ok), said(PING, 0, 0, [0; 8])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        ("a table that is lost", said(HEADERS, END_HEADERS, 1, [0xff; 40]), Reason::COMPRESSION_ERROR),
        (
            "a long frame",
            [&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1][..], &[0; 64]].concat(),
            Reason::FRAME_SIZE_ERROR,
        ),
        ("promises that are offered", set(&[(2, 1)]), Reason::PROTOCOL_ERROR),
        ("half a setting", said(SETTINGS, 0, 0, [0; 5]), Reason::FRAME_SIZE_ERROR),
        ("a short goodbye", said(GOAWAY, 0, 0, [0; 7]), Reason::FRAME_SIZE_ERROR),
        ("more padding than data", said(DATA, PADDED, 1, [200, 1]), Reason::PROTOCOL_ERROR),
        ("a window without end", room(0, (1 << 31) - 1), Reason::FLOW_CONTROL_ERROR),
    ];
    for (what, frames, reason) in cases {
        let mut server = Server::new().await;
        let called = server.got(1).await;
        if frames[3] == DATA && frames[8] == 1 {
            server.send(&answer(1, "200", &[], false)).await;
            server.send(&frames).await;
            let error = read(answered(called).await).await.unwrap_err();
            assert!(matches!(error, Lost::Violated(why) if why.reason == reason), "{what}: {error}");
        } else {
            server.send(&frames).await;
            let error = lost(called).await;
            assert!(matches!(error, Lost::Violated(why) if why.reason == reason), "{what}: {error}");
        }
        assert_eq!(server.place(), Place::None);
        server.hears_why(reason).await;
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_there_is_room_for_ends_it() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    server.send(&[answer(1, "200", &[], false), bytes(1, (1 << 20) + 1)].concat()).await;
    server.hears([Heard::Reset(1, Reason::FLOW_CONTROL_ERROR)]).await;
    let error = read(answered(called).await).await.unwrap_err();
    assert_eq!(error, Lost::Malformed(Reason::FLOW_CONTROL_ERROR));
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn frames_that_ask_for_nothing_do_not_come_without_end() {
    let mut server = Server::new().await;
    server.send(&said(PING, 0, 0, [7; 8])).await;
    server.hears([Heard::Pong(Bytes::from_static(&[7; 8]))]).await;
    server.send(&said(SETTINGS, ACK, 0, []).repeat(10_100)).await;
    server.hears_why(Reason::ENHANCE_YOUR_CALM).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_without_end_and_takes_no_answer_is_left() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    server.send(&answer(1, "200", &[], false)).await;
    let answer = answered(called).await;
    // Carries enough to pay for what it asks.
    let pings = said(PING, 0, 0, [7; 8]).repeat(10);
    let frames = [said(DATA, 0, 1, "a"), pings].concat().repeat(1000);
    let Server { mut wire, session, .. } = server;
    let flooding = async {
        for _ in 0..30 {
            wire.send(&frames).await;
        }
    };
    tokio::select! {
        () = flooding => panic!("all of it was taken"),
        error = read(answer) => {
            let error = error.unwrap_err();
            let expected = Reason::ENHANCE_YOUR_CALM;
            assert!(matches!(error, Lost::Violated(why) if why.reason == expected), "{error}");
        }
    }
    assert_eq!(lock(&session).place(), Place::None);
}
