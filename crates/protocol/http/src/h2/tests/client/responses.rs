//! Responses are delivered complete or streamed.

use super::*;

fn trailers(stream: u32) -> Vec<u8> {
    raw_frame(HEADERS, END_HEADERS | END_STREAM, stream, header_block(&[("grpc-status", "0")]))
}

#[tokio::test(start_paused = true)]
async fn http2_response_in_one_read_is_delivered_complete() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    let sent =
        [response_headers(1, "200", &[("x-b", "c")], false), raw_frame(DATA, 0, 1, "tea"), trailers(1)];
    server.send(&sent.concat()).await;
    let response = response_of(called).await;
    assert_eq!(response.headers()["x-b"], "c");
    assert!(lock(&server.session).is_idle(), "the stream is closed");
    let (text, trailers) = read(response).await.unwrap();
    assert_eq!((&text[..], &trailers.unwrap()["grpc-status"]), (&b"tea"[..], &"0".parse().unwrap()));
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn http2_response_in_pieces_is_streamed() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    server.send(&response_headers(1, "200", &[], false)).await;
    let mut body = response_of(called).await.into_body();
    for text in ["tea", "milk"] {
        server.send(&raw_frame(DATA, 0, 1, text)).await;
        assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), text);
    }
    server.send(&trailers(1)).await;
    assert!(in_time(body.frame()).await.unwrap().unwrap().is_trailers());
    assert!(in_time(body.frame()).await.is_none());
    drop(body);
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn http2_client_skips_informational_responses() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    let sent = ["100", "103"].map(|status| response_headers(1, status, &[("link", "x")], false)).concat();
    server.send(&[sent, response_headers(1, "200", &[], true)].concat()).await;
    let response = response_of(called).await;
    assert!(response.status() == 200 && !response.headers().contains_key("link"));
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn excess_informational_responses_fail_their_call() {
    let mut server = Server::new().await;
    let long = "y".repeat(120);
    for (stream, hints, fields) in [(1, 33, vec![("link", "x")]), (3, 32, vec![("link", &long[..]); 20])] {
        let called = server.get(stream).await;
        let hints = response_headers(stream, "103", &fields, false).repeat(hints);
        server.send(&[hints, response_headers(stream, "200", &[], true)].concat()).await;
        assert_eq!(error_of(called).await, StreamError::Malformed(Reason::PROTOCOL_ERROR));
        server.expect([Event::Reset(stream, Reason::PROTOCOL_ERROR)]).await;
    }
    server.expect_alive(5).await;
}

#[tokio::test(start_paused = true)]
async fn response_without_body_may_have_content_length() {
    let mut server = Server::new().await;
    let called = server.call(&Method::HEAD, whole(""));
    server.expect([head(1, "HEAD", true)]).await;
    server.send(&response_headers(1, "200", &[("content-length", "10")], true)).await;
    assert_eq!(response_of(called).await.headers()["content-length"], "10");
    let called = server.get(3).await;
    server.send(&response_headers(3, "304", &[("content-length", "10")], true)).await;
    assert_eq!(response_of(called).await.status(), 304);
    server.expect_alive(5).await;
}

#[tokio::test(start_paused = true)]
async fn long_response_gets_larger_window_without_stalling_other_responses() {
    let mut server = Server::new().await;
    let (long, other) = (server.get(1).await, server.get(3).await);
    server.send(&[response_headers(1, "200", &[], false), data_frames(1, 64 << 10)].concat()).await;
    server
        .send(&[response_headers(3, "200", &[], false), raw_frame(DATA, END_STREAM, 3, "tea")].concat())
        .await;
    assert_eq!(&read(response_of(other).await).await.unwrap().0[..], b"tea");
    let mut body = response_of(long).await.into_body();
    let mut taken = 0;
    while taken < 64 << 10 {
        taken += in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap().len();
    }
    // Returns what was read, and enlarges the window to its maximum once the reader waits for more.
    server.expect([Event::WindowUpdate(1, 32 << 10), Event::WindowUpdate(1, (1 << 20) - (32 << 10))]).await;
    server.expect_nothing().await;
    drop(body);
    server.expect([Event::Reset(1, Reason::CANCEL)]).await;
    server.expect_alive(5).await;
}

#[tokio::test(start_paused = true)]
async fn response_data_before_stream_reset_is_delivered() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    let sent = [
        response_headers(1, "200", &[], false),
        raw_frame(DATA, 0, 1, "so far"),
        rst_stream(1, Reason::INTERNAL_ERROR),
    ];
    server.send(&sent.concat()).await;
    let mut body = response_of(called).await.into_body();
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "so far");
    let error = in_time(body.frame()).await.unwrap().unwrap_err();
    assert_eq!(error, StreamError::Reset(Reason::INTERNAL_ERROR));
    drop(body);
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn excess_continuation_frames_are_rejected() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    let long = "y".repeat(100);
    let fields: Vec<(&str, &str)> = [(":status", "200")].into_iter().chain([("x", &long[..]); 100]).collect();
    let header_block = header_block(&fields);
    let (first, rest) = header_block.split_at(4_000);
    let frames = [raw_frame(HEADERS, END_STREAM, 1, first), raw_frame(CONTINUATION, 0, 1, &rest[..4_000])];
    server
        .send(&[&frames.concat()[..], &raw_frame(CONTINUATION, END_HEADERS, 1, &rest[4_000..])].concat())
        .await;
    assert_eq!(response_of(called).await.headers().get_all("x").iter().count(), 100);
    server.expect_alive(3).await;

    // A header block above the limit must not affect other calls.
    let called = server.get(5).await;
    server.send(&response_headers(5, "200", &[("x", "y"); 129], true)).await;
    assert_eq!(error_of(called).await, StreamError::TooLarge);
    server.expect([Event::Reset(5, Reason::PROTOCOL_ERROR)]).await;
    let called = server.get(7).await;
    let fields = [&[(":status", "200")][..], &[("x", &long[..]); 700]].concat();
    for (n, piece) in super::header_block(&fields).chunks(16_000).enumerate() {
        server.send(&raw_frame(if n == 0 { HEADERS } else { CONTINUATION }, 0, 7, piece)).await;
    }
    server.send(&raw_frame(CONTINUATION, END_HEADERS, 7, [])).await;
    assert_eq!(error_of(called).await, StreamError::TooLarge);
    server.expect([Event::Reset(7, Reason::PROTOCOL_ERROR)]).await;
    server.expect_alive(9).await;

    let _called = server.get(11).await;
    server.send(&raw_frame(HEADERS, 0, 11, [0; 16_000])).await;
    for _ in 0..80 {
        server.send(&raw_frame(CONTINUATION, 0, 11, [0; 16_000])).await;
    }
    server.expect_goaway(Reason::ENHANCE_YOUR_CALM).await;
}
