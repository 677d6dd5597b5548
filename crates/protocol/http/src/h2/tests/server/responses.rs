//! Responses are sent completely and in valid form.

use super::*;

#[tokio::test(start_paused = true)]
async fn end_stream_flag_is_on_last_data_frame() {
    let mut client = Client::new().await;
    client.request(&get(1, "/")).await.respond(whole(200, "text"));
    client.expect([head(1, 200, &[("content-length", "4")], false), data(1, "text", true)]).await;
    let (pieces, response) = streamed();
    client.request(&get(3, "/")).await.respond(response);
    client.expect([head(3, 200, &[], false)]).await;
    pieces.send(piece("one")).unwrap();
    client.expect([data(3, "one", false)]).await;
    pieces.send(piece("")).unwrap();
    client.expect_nothing().await;
    drop(pieces);
    client.expect([data(3, "", true)]).await;
    client.expect_alive(5).await;
}

#[tokio::test(start_paused = true)]
async fn http2_response_without_body_ends_with_its_headers() {
    let mut client = Client::new().await;
    for (stream, status, fields) in
        [(1, 204, &[][..]), (3, 200, &[("content-length", "1000")]), (5, 304, &[("etag", "x")])]
    {
        let mut response = whole(status, "");
        *response.headers_mut() = headers(fields);
        client.request(&get(stream, "/")).await.respond(response);
        client.expect([head(stream, status, fields, true)]).await;
    }
    client.expect_alive(7).await;
}

#[tokio::test(start_paused = true)]
async fn content_length_of_response_is_kept() {
    let mut client = Client::new().await;
    let (pieces, mut response) = streamed();
    *response.headers_mut() = headers(&[("content-length", "3")]);
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(piece("tea")).unwrap();
    drop(pieces);
    client
        .expect([head(1, 200, &[("content-length", "3")], false), data(1, "tea", false), data(1, "", true)])
        .await;
}

#[tokio::test(start_paused = true)]
async fn http2_response_may_end_with_trailers() {
    let mut client = Client::new().await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(piece("text")).unwrap();
    let raw_frame = headers(&[("x-sum", "7"), ("connection", "close"), ("x-sum", "8")]);
    pieces.send(Ok(Frame::trailers(raw_frame))).unwrap();
    let headers = headers(&[("x-sum", "7"), ("x-sum", "8")]);
    let trailers = Event::Headers { stream: 1, status: None, headers, ends: true };
    client.expect([head(1, 200, &[], false), data(1, "text", false), trailers]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn response_trailers_need_no_send_window() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(Ok(Frame::trailers(headers(&[("x-sum", "7")])))).unwrap();
    let trailers =
        Event::Headers { stream: 1, status: None, headers: headers(&[("x-sum", "7")]), ends: true };
    client.expect([head(1, 200, &[], false), trailers]).await;
}

#[tokio::test(start_paused = true)]
async fn large_response_headers_use_continuation_frames() {
    let mut client = Client::new().await;
    let mut response = whole(200, "");
    for n in 0..400 {
        let value = format!("{n}{}", "v".repeat(200)).parse().unwrap();
        response.headers_mut().append(HeaderName::from_static("x-long"), value);
    }
    let expected = response.headers().clone();
    client.request(&get(1, "/")).await.respond(response);

    let (mut kinds, mut header_block) = (Vec::new(), Vec::new());
    loop {
        let (head, payload) = client.wire.frame().await.unwrap();
        assert!(head.stream == 1 && head.length <= DEFAULT_FRAME_SIZE, "{head:?}");
        kinds.push((head.kind, head.flags));
        header_block.extend_from_slice(&payload);
        if head.has(END_HEADERS) {
            break;
        }
    }
    let (first, rest) = kinds.split_first().unwrap();
    assert_eq!(*first, (HEADERS, END_STREAM));
    let (last, between) = rest.split_last().unwrap();
    assert_eq!(*last, (CONTINUATION, END_HEADERS));
    assert!(!between.is_empty() && between.iter().all(|frame| *frame == (CONTINUATION, 0)), "{kinds:?}");
    let mut decoded = HeaderMap::new();
    let each = |field| {
        if let Field::Header(name, value) = field {
            decoded.append(name, value);
        }
    };
    client.wire.decoder.decode(&header_block, each).unwrap();
    assert_eq!(decoded, expected);
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn response_data_frames_have_default_maximum_size() {
    // The client would accept larger frames.
    let mut client = Client::with(&[(5, 1 << 20), (INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    client.request(&get(1, "/")).await.respond(whole(200, vec![b'x'; 2 * DEFAULT_FRAME_SIZE + 1]));
    let length = (2 * DEFAULT_FRAME_SIZE + 1).to_string().leak();
    client.expect([head(1, 200, &[("content-length", length)], false)]).await;
    let long = Bytes::from(vec![b'x'; DEFAULT_FRAME_SIZE]);
    client.expect([data(1, long.clone(), false), data(1, long, false), data(1, "x", true)]).await;
}

#[tokio::test(start_paused = true)]
async fn failing_response_body_resets_its_stream() {
    let mut client = Client::new().await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(piece("so far")).unwrap();
    pieces.send(Err("broken".into())).unwrap();
    client.expect([head(1, 200, &[], false), data(1, "so far", false)]).await;
    client.expect([Event::Reset(1, Reason::INTERNAL_ERROR)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn connection_specific_headers_are_removed_from_http2_responses() {
    let mut client = Client::new().await;
    let mut response = whole(200, "");
    *response.headers_mut() = headers(&[
        ("connection", "close, x"),
        ("x-kept", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("connection", "again"),
    ]);
    client.request(&get(1, "/")).await.respond(response);
    client.expect([head(1, 200, &[("x-kept", "1")], true)]).await;
}

#[tokio::test(start_paused = true)]
async fn responses_are_sent_in_order_of_readiness() {
    let mut client = Client::new().await;
    let first = client.request(&get(1, "/")).await;
    let second = client.request(&get(3, "/")).await;
    second.respond(whole(200, ""));
    client.expect([head(3, 200, &[], true)]).await;
    first.respond(whole(404, ""));
    client.expect([head(1, 404, &[], true)]).await;
}
