//! A malformed response fails its call; a protocol violation ends the connection.

use super::*;

#[tokio::test(start_paused = true)]
async fn malformed_response_fails_only_its_call() {
    let mut server = Server::new().await;
    let trailers =
        |flags, fields: &[(&str, &str)]| raw_frame(HEADERS, END_HEADERS | flags, 0, header_block(fields));
    let cases: [(&str, Vec<u8>); 14] = [
        ("no :status", raw_frame(HEADERS, END_HEADERS, 0, header_block(&[("x", "y")]))),
        ("two of :status", response_headers(0, "200", &[(":status", "200")], false)),
        ("an invalid :status", response_headers(0, "2000", &[], false)),
        ("HEADERS", response_headers(0, "200", &[(":path", "/")], false)),
        ("upper case", response_headers(0, "200", &[("X-A", "b")], false)),
        ("HTTP/1.1", response_headers(0, "200", &[("transfer-encoding", "chunked")], false)),
        (
            "two content-lengths",
            response_headers(0, "200", &[("content-length", "1"), ("content-length", "2")], false),
        ),
        (
            "a body shorter than its content-length",
            response_headers(0, "200", &[("content-length", "1")], true),
        ),
        ("a switch of protocols", response_headers(0, "101", &[], false)),
        ("END_STREAM before the response", response_headers(0, "100", &[], true)),
        ("DATA before HEADERS", raw_frame(DATA, 0, 0, "tea")),
        (
            "a body longer than its content-length",
            [response_headers(0, "200", &[("content-length", "1")], false), raw_frame(DATA, 0, 0, "tea")]
                .concat(),
        ),
        (
            "a body with status 204",
            [response_headers(0, "204", &[], false), raw_frame(DATA, 0, 0, "tea")].concat(),
        ),
        (
            "trailers without END_STREAM",
            [response_headers(0, "200", &[], false), trailers(0, &[("x", "y")])].concat(),
        ),
    ];
    for (n, (what, mut frames)) in cases.into_iter().enumerate() {
        let stream = 4 * n as u32 + 1;
        let called = server.get(stream).await;
        on_stream(&mut frames, stream);
        server.send(&frames).await;
        let lost = match outcome(called).await {
            Err(CallError::Stream(lost)) => lost,
            Ok((response, _)) => read(response).await.expect_err(what),
            other => panic!("{what}: {other:?}"),
        };
        assert_eq!(lost, StreamError::Malformed(Reason::PROTOCOL_ERROR), "{what}");
        server.expect([Event::Reset(stream, Reason::PROTOCOL_ERROR)]).await;
        server.expect_alive(stream + 2).await;
    }
}

/// Rewrites the stream identifier of every frame.
fn on_stream(mut frames: &mut [u8], stream: u32) {
    while let [l0, l1, l2, _, _, s0, s1, s2, s3, ..] = frames {
        [*s0, *s1, *s2, *s3] = stream.to_be_bytes();
        let length = u32::from_be_bytes([0, *l0, *l1, *l2]) as usize;
        frames = &mut frames[9 + length..];
    }
}

#[tokio::test(start_paused = true)]
async fn protocol_violation_ends_connection_and_fails_its_calls() {
    let ok = header_block(&[(":status", "200")]);
    let cases: [(&str, Vec<u8>, Reason); 13] = [
        ("HEADERS on an idle stream", response_headers(9, "200", &[], true), Reason::PROTOCOL_ERROR),
        ("HEADERS on an even stream", response_headers(2, "200", &[], true), Reason::PROTOCOL_ERROR),
        ("DATA on stream 0", raw_frame(DATA, 0, 0, "tea"), Reason::PROTOCOL_ERROR),
        ("DATA on an idle stream", raw_frame(DATA, 0, 7, "tea"), Reason::PROTOCOL_ERROR),
        (
            "PUSH_PROMISE",
            raw_frame(PUSH_PROMISE, END_HEADERS, 1, [&[0, 0, 0, 2], &ok[..]].concat()),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "another frame within a header block",
            [raw_frame(HEADERS, 0, 1, &ok), raw_frame(PING, 0, 0, [0; 8])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "an undecodable header block",
            raw_frame(HEADERS, END_HEADERS, 1, [0xff; 40]),
            Reason::COMPRESSION_ERROR,
        ),
        (
            "a too long frame",
            [&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1][..], &[0; 64]].concat(),
            Reason::FRAME_SIZE_ERROR,
        ),
        ("ENABLE_PUSH by a server", settings_frame(&[(2, 1)]), Reason::PROTOCOL_ERROR),
        ("truncated SETTINGS", raw_frame(SETTINGS, 0, 0, [0; 5]), Reason::FRAME_SIZE_ERROR),
        ("a short GOAWAY", raw_frame(GOAWAY, 0, 0, [0; 7]), Reason::FRAME_SIZE_ERROR),
        ("padding beyond DATA", raw_frame(DATA, PADDED, 1, [200, 1]), Reason::PROTOCOL_ERROR),
        ("a window overflow", window_update(0, (1 << 31) - 1), Reason::FLOW_CONTROL_ERROR),
    ];
    for (what, frames, reason) in cases {
        let mut server = Server::new().await;
        let called = server.get(1).await;
        if frames[3] == DATA && frames[8] == 1 {
            server.send(&response_headers(1, "200", &[], false)).await;
            server.send(&frames).await;
            let error = read(response_of(called).await).await.unwrap_err();
            assert!(matches!(error, StreamError::Violation(why) if why.reason == reason), "{what}: {error}");
        } else {
            server.send(&frames).await;
            let error = error_of(called).await;
            assert!(matches!(error, StreamError::Violation(why) if why.reason == reason), "{what}: {error}");
        }
        assert_eq!(server.capacity(), Capacity::Closed);
        server.expect_goaway(reason).await;
    }
}

#[tokio::test(start_paused = true)]
async fn response_data_beyond_stream_window_resets_only_its_stream() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    server.send(&[response_headers(1, "200", &[], false), data_frames(1, (64 << 10) + 1)].concat()).await;
    server.expect([Event::Reset(1, Reason::FLOW_CONTROL_ERROR)]).await;
    let error = read(response_of(called).await).await.unwrap_err();
    assert_eq!(error, StreamError::Malformed(Reason::FLOW_CONTROL_ERROR));
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn server_frames_without_progress_end_connection() {
    let mut server = Server::new().await;
    server.send(&raw_frame(PING, 0, 0, [7; 8])).await;
    server.expect([Event::Pong(Bytes::from_static(&[7; 8]))]).await;
    server.send(&raw_frame(SETTINGS, ACK, 0, []).repeat(10_100)).await;
    server.expect_goaway(Reason::ENHANCE_YOUR_CALM).await;
}

#[tokio::test(start_paused = true)]
async fn server_that_pings_without_reading_is_disconnected() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    server.send(&response_headers(1, "200", &[], false)).await;
    let response = response_of(called).await;
    // Headers that earn enough tokens for the PINGs.
    let pings = raw_frame(PING, 0, 0, [7; 8]).repeat(10);
    let frames = [raw_frame(DATA, 0, 1, "a"), pings].concat().repeat(1000);
    let Server { mut wire, session, .. } = server;
    let flooding = async {
        for _ in 0..30 {
            wire.send(&frames).await;
        }
    };
    tokio::select! {
        () = flooding => panic!("all of it was taken"),
        error = read(response) => {
            let error = error.unwrap_err();
            let expected = Reason::ENHANCE_YOUR_CALM;
            assert!(matches!(error, StreamError::Violation(why) if why.reason == expected), "{error}");
        }
    }
    assert_eq!(lock(&session).capacity(), Capacity::Closed);
}
