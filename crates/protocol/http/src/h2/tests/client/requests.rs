//! Requests are sent as flow control allows.

use super::*;

#[tokio::test(start_paused = true)]
async fn small_http2_request_is_sent_at_once() {
    let mut server = Server::new().await;
    let called = server.call(&Method::POST, whole("tea"));
    server.expect([head(1, "POST", false), data(1, "tea", true)]).await;
    server.send(&response_headers(1, "201", &[], true)).await;
    assert_eq!(response_of(called).await.status(), 201);
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn connect_request_has_only_authority_pseudo_header() {
    let mut server = Server::new().await;
    let _called = server.call(&Method::CONNECT, whole(""));
    let Event::Headers { fields, .. } = server.next_event().await else { panic!("no head") };
    let names: Vec<_> = fields.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [":method", ":authority", "x-a"]);
}

#[tokio::test(start_paused = true)]
async fn request_body_pieces_are_sent_as_they_arrive_before_trailers() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.expect([head(1, "POST", false)]).await;
    for text in ["tea", "milk"] {
        pieces.send(piece(text)).unwrap();
        server.expect([data(1, text, false)]).await;
    }
    let trailers = [("x-sum", "7"), ("connection", "close")];
    let trailers = trailers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    pieces.send(Ok(Frame::trailers(HeaderMap::from_iter(trailers)))).unwrap();
    let fields = vec![("x-sum".to_owned(), "7".to_owned())];
    server.expect([Event::Headers { stream: 1, fields, ends: true }]).await;
    server.send(&response_headers(1, "200", &[], true)).await;
    response_of(called).await;
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn request_body_uses_exactly_send_window() {
    let mut server = Server::with(&[(INITIAL_WINDOW_SIZE, 10)]).await;
    let called = server.call(&Method::POST, whole(vec![b'x'; 100_000]));
    server.expect([head(1, "POST", false), data(1, vec![b'x'; 10], false)]).await;
    server.expect_nothing().await;
    server.send(&window_update(1, 200_000)).await;
    assert!(!server.expect_bytes(1, 65_525).await);
    server.expect_nothing().await;
    server.send(&window_update(0, 1 << 20)).await;
    assert!(server.expect_bytes(1, 100_000 - 65_535).await);
    server.send(&response_headers(1, "200", &[], true)).await;
    response_of(called).await;
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn request_upload_continues_while_response_is_read() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.expect([head(1, "POST", false)]).await;
    server.send(&response_headers(1, "200", &[], false)).await;
    let (response, upload) = outcome(called).await.unwrap();
    let uploading = tokio::spawn(upload.expect("the upload continues"));
    pieces.send(piece("ping")).unwrap();
    server.expect([data(1, "ping", false)]).await;
    server.send(&raw_frame(DATA, END_STREAM, 1, "pong")).await;
    assert_eq!(&read(response).await.unwrap().0[..], b"pong");
    // After the body is dropped, nothing more is sent.
    server.expect([Event::Reset(1, Reason::CANCEL)]).await;
    in_time(uploading).await.unwrap();
    assert!(pieces.is_closed());
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn failing_request_body_cancels_its_call() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    pieces.send(piece("so far")).unwrap();
    pieces.send(Err("broken".into())).unwrap();
    assert!(matches!(outcome(called).await, Err(CallError::Body(_))));
    server.expect([head(1, "POST", false), data(1, "so far", false), Event::Reset(1, Reason::CANCEL)]).await;
    server.expect_alive(3).await;

    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.expect([head(5, "POST", false)]).await;
    server.send(&response_headers(5, "200", &[], false)).await;
    let (response, upload) = outcome(called).await.unwrap();
    let uploading = tokio::spawn(upload.unwrap());
    pieces.send(Err("broken".into())).unwrap();
    server.expect([Event::Reset(5, Reason::CANCEL)]).await;
    in_time(uploading).await.unwrap();
    assert_eq!(read(response).await.unwrap_err(), StreamError::Cancelled, "the server is not to blame");
    server.expect_alive(7).await;
}

#[tokio::test(start_paused = true)]
async fn response_is_returned_despite_failed_request_body() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.expect([head(1, "POST", false)]).await;
    server.send(&response_headers(1, "413", &[], true)).await;
    pieces.send(Err("broken".into())).unwrap();
    let (response, upload) = outcome(called).await.unwrap();
    assert_eq!(response.status(), 413);
    in_time(upload.unwrap()).await;
    server.expect([Event::Reset(1, Reason::CANCEL)]).await;
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn upload_stops_at_stream_reset_after_response() {
    let mut server = Server::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let called = server.call(&Method::POST, whole("too much"));
    server.expect([head(1, "POST", false)]).await;
    let end = raw_frame(DATA, END_STREAM, 1, "enough");
    server
        .send(&[response_headers(1, "200", &[], false), end, rst_stream(1, Reason::NO_ERROR)].concat())
        .await;
    let (response, upload) = outcome(called).await.unwrap();
    assert_eq!(&read(response).await.unwrap().0[..], b"enough");
    in_time(upload.expect("the body is unsent")).await;
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn stream_reset_before_response_fails_call() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    server.send(&[response_headers(1, "200", &[], false), rst_stream(1, Reason::NO_ERROR)].concat()).await;
    assert_eq!(read(response_of(called).await).await.unwrap_err(), StreamError::Reset(Reason::NO_ERROR));
    server.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_call_resets_its_stream_and_late_frames_are_ignored() {
    let mut server = Server::new().await;
    for n in 0..300 {
        let stream = 2 * n + 1;
        let called = server.get(stream).await;
        called.abort();
        server.expect([Event::Reset(stream, Reason::CANCEL)]).await;
    }
    // The first of these streams are no longer remembered.
    for stream in [1, 3, 599] {
        server.send(&response_headers(stream, "200", &[("x-a", "b")], false)).await;
        server.send(&raw_frame(DATA, 0, stream, "late")).await;
        server.send(&[window_update(stream, 1), rst_stream(stream, Reason::NO_ERROR)].concat()).await;
    }
    server.expect_alive(601).await;
}
