//! Request bodies and receive windows.

use super::{super::super::frame::PADDED, *};

/// The server's receive windows, as far as the client knows.
struct PeerWindows {
    stream: usize,
    connection: usize,
}

/// Sends a body as flow control allows.
async fn upload(client: &mut Client, stream: u32, mut left: usize) {
    let mut ahead = PeerWindows { stream: STREAM_WINDOW, connection: CONNECTION_WINDOW };
    while left > 0 {
        let size = left.min(DEFAULT_FRAME_SIZE).min(ahead.stream).min(ahead.connection);
        if size == 0 {
            match client.next_event().await {
                Event::WindowUpdate(0, more) => ahead.connection += more as usize,
                Event::WindowUpdate(of, more) if of == stream => ahead.stream += more as usize,
                other => panic!("{other:?}, and {left} bytes wait"),
            }
            continue;
        }
        left -= size;
        let flags = if left == 0 { END_STREAM } else { 0 };
        client.send(&raw_frame(DATA, flags, stream, vec![b'a'; size])).await;
        ahead.stream -= size;
        ahead.connection -= size;
    }
}

#[tokio::test(start_paused = true)]
async fn long_http2_request_body_is_received_completely() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[("content-length", "3000000")])).await;
    let reading = tokio::spawn(dispatched.request.into_body().collect());
    upload(&mut client, 1, 3_000_000).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 3_000_000);
}

#[tokio::test(start_paused = true)]
async fn receive_windows_grow_as_request_body_is_read() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    client.send(&data_frames(1, STREAM_WINDOW)).await;
    client.expect_nothing().await;
    let mut body = dispatched.request.into_body();
    read(&mut body, STREAM_WINDOW / 2).await;
    client.expect([Event::WindowUpdate(1, 32 << 10)]).await;
    read(&mut body, STREAM_WINDOW / 2).await;
    client.expect([Event::WindowUpdate(1, (MAX_STREAM_WINDOW - (32 << 10)) as u32)]).await;
    client.send(&data_frames(1, MAX_STREAM_WINDOW)).await;
    read(&mut body, MAX_STREAM_WINDOW).await;
    client.expect([Event::WindowUpdate(1, 1 << 19), Event::WindowUpdate(1, 1 << 19)]).await;
}

/// Reads `left` bytes of a body.
async fn read(body: &mut RequestBody, mut left: usize) {
    while left > 0 {
        left -= in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap().len();
    }
}

/// Opens a stream whose reader is faster than its peer. Returns the body, and the growth of the stream's window in
/// bytes.
async fn grown(client: &mut Client, stream: u32) -> (RequestBody, usize) {
    let mut body = client.request(&post(stream, &[])).await.request.into_body();
    client.send(&data_frames(stream, STREAM_WINDOW)).await;
    read(&mut body, STREAM_WINDOW).await;
    client.expect([Event::WindowUpdate(stream, 32 << 10)]).await;
    let Event::WindowUpdate(_, more) = client.next_event().await else { panic!("no second update") };
    (body, more as usize - (32 << 10))
}

/// Opens several streams as in `grown`, and checks that their windows together grow by the whole budget.
async fn grown_by_all(client: &mut Client, streams: impl Iterator<Item = u32>) -> Vec<RequestBody> {
    let (mut bodies, mut all) = (Vec::new(), 0);
    for stream in streams {
        let (body, growth) = grown(client, stream).await;
        bodies.push(body);
        all += growth;
    }
    assert_eq!(all, 4 << 20, "of all windows together");
    bodies
}

#[tokio::test(start_paused = true)]
async fn receive_window_growth_stays_within_connection_budget() {
    let mut client = Client::new().await;
    let mut bodies = grown_by_all(&mut client, (1..13).step_by(2)).await;
    // A reader that falls behind returns what others need.
    client.send(&data_frames(1, MAX_STREAM_WINDOW)).await;
    read(&mut bodies[0], MAX_STREAM_WINDOW / 2).await;
    client.expect_nothing().await;
    let (body, growth) = grown(&mut client, 13).await;
    assert_eq!(growth, MAX_STREAM_WINDOW / 2);
    bodies.push(body);
    // The whole budget is free again when the streams have ended, with unread bytes or without a reader.
    bodies.truncate(4);
    for stream in (1..15).step_by(2) {
        client.send(&rst_stream(stream, Reason::CANCEL)).await;
    }
    client.expect_alive(15).await;
    drop(bodies);
    grown_by_all(&mut client, (17..29).step_by(2)).await;
}

#[tokio::test(start_paused = true)]
async fn unread_request_streams_do_not_stall_others() {
    let mut client = Client::new().await;
    let mut unread = Vec::new();
    for n in 0..40 {
        let stream = 2 * n + 1;
        unread.push(client.request(&post(stream, &[])).await);
        client.send(&data_frames(stream, STREAM_WINDOW)).await;
    }
    let dispatched = client.request(&post(81, &[])).await;
    let reading = tokio::spawn(dispatched.request.into_body().collect());
    upload(&mut client, 81, 3_000_000).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 3_000_000);
}

#[tokio::test(start_paused = true)]
async fn padding_counts_against_receive_windows() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    let mut reading = tokio::spawn(dispatched.request.into_body().collect());
    let padded = raw_frame(DATA, PADDED, 1, [&[255][..], b"a", &[0; 255]].concat());
    // More than the window would hold if padding were not returned.
    for _ in 0..STREAM_WINDOW / 257 + 10 {
        client.send(&padded).await;
        tokio::task::yield_now().await;
    }
    let event = client.next_event().await;
    assert!(matches!(event, Event::WindowUpdate(1, _)), "{event:?}");
    client.send(&raw_frame(DATA, END_STREAM, 1, "")).await;
    let read = in_time(&mut reading).await.unwrap().unwrap().to_bytes();
    assert_eq!(read.len(), STREAM_WINDOW / 257 + 10);
}

#[tokio::test(start_paused = true)]
async fn data_beyond_stream_window_resets_only_that_stream() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    client.request(&post(1, &[])).await.respond(whole(200, "waits"));
    client.expect([head(1, 200, &[("content-length", "5")], false)]).await;
    client.send(&data_frames(1, STREAM_WINDOW)).await;
    client.send(&raw_frame(DATA, 0, 1, "a")).await;
    client.expect([Event::Reset(1, Reason::FLOW_CONTROL_ERROR)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn rest_of_request_body_is_discarded_after_response() {
    let mut client = Client::new().await;
    client.request(&post(1, &[])).await.respond(whole(413, "too much"));
    client.expect([head(1, 413, &[("content-length", "8")], false), data(1, "too much", true)]).await;
    client.send(&data_frames(1, 10_000)).await;
    client.send(&raw_frame(DATA, END_STREAM, 1, "")).await;
    client.expect_alive(3).await;
    client.expect_nothing_for(Duration::from_secs(2)).await;
    client.expect_alive(5).await;
}

#[tokio::test(start_paused = true)]
async fn discarding_rest_of_request_body_is_bounded_in_time() {
    let mut client = Client::new().await;
    client.request(&post(1, &[])).await.respond(whole(413, ""));
    let begun = tokio::time::Instant::now();
    client.expect([head(1, 413, &[], true)]).await;
    client.send(&data_frames(1, 10_000)).await;
    client.expect([Event::Reset(1, Reason::NO_ERROR)]).await;
    let waited = begun.elapsed();
    assert!((1000..1100).contains(&waited.as_millis()), "{waited:?}");
    client.send(&data_frames(1, 10_000)).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn discarding_rest_of_request_body_is_bounded_in_bytes() {
    let mut client = Client::new().await;
    client.request(&post(1, &[])).await.respond(whole(413, ""));
    client.expect([head(1, 413, &[], true)]).await;
    client.send(&data_frames(1, 32 * 1024)).await;
    client.expect_nothing().await;
    let begun = tokio::time::Instant::now();
    client.send(&data_frames(1, 1)).await;
    client.expect([Event::Reset(1, Reason::NO_ERROR)]).await;
    assert!(begun.elapsed() < Duration::from_millis(10));
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn unread_upload_is_reset_only_after_response() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    client.request(&post(1, &[])).await.respond(whole(413, "too much"));
    client.expect([head(1, 413, &[("content-length", "8")], false)]).await;
    client.send(&data_frames(1, 60_000)).await;
    client.expect_nothing().await;
    client.send(&window_update(1, 3)).await;
    client.expect([data(1, "too", false)]).await;
    client.send(&window_update(1, 5)).await;
    client.expect([data(1, " much", true), Event::Reset(1, Reason::NO_ERROR)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn request_body_may_be_read_after_response() {
    let mut client = Client::new().await;
    let Dispatched { request, response } = client.request(&post(1, &[])).await;
    let _ = response.send(whole(200, "early"));
    client.expect([head(1, 200, &[("content-length", "5")], false), data(1, "early", true)]).await;
    let reading = tokio::spawn(request.into_body().collect());
    client.expect_nothing_for(Duration::from_secs(5)).await;
    client.send(&data_frames(1, 60_000)).await;
    client.send(&raw_frame(DATA, END_STREAM, 1, "")).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 60_000);
    client.expect_alive(3).await;
}

const EXPECT: &[(&str, &str)] = &[("expect", "100-continue")];

#[tokio::test(start_paused = true)]
async fn reading_expected_request_body_sends_100_continue() {
    let mut client = Client::new().await;
    let Dispatched { request, response } = client.request(&post(1, EXPECT)).await;
    client.expect_nothing().await;
    let reading = tokio::spawn(request.into_body().collect());
    client.expect([head(1, 100, &[], false)]).await;
    client.expect_nothing().await;
    client.send(&raw_frame(DATA, 0, 1, "some")).await;
    client.send(&raw_frame(DATA, END_STREAM, 1, "body")).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes(), "somebody");
    assert!(response.send(whole(200, "")).is_ok());
    client.expect([head(1, 200, &[], true)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn final_response_may_precede_100_continue() {
    let mut client = Client::new().await;
    let Dispatched { request, response } = client.request(&post(1, EXPECT)).await;
    let _ = response.send(whole(417, ""));
    client.expect([head(1, 417, &[], true)]).await;
    let reading = tokio::spawn(request.into_body().collect());
    client.expect_nothing().await;
    client.send(&raw_frame(DATA, END_STREAM, 1, "body")).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes(), "body");
    client.expect_alive(3).await;
}
