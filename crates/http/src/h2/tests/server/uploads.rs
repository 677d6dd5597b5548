//! Request bodies and receive windows.

use super::{super::super::frame::PADDED, *};

/// The windows of the peer, as far as the client knows.
struct PeerWindows {
    stream: usize,
    connection: usize,
}

/// Sends a body as flow control allows.
async fn upload(client: &mut Client, stream: u32, mut left: usize) {
    let mut ahead = PeerWindows { stream: WINDOW, connection: WINDOW };
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
async fn a_long_body_is_received_completely() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[("content-length", "3000000")])).await;
    let reading = tokio::spawn(dispatched.request.into_body().collect());
    upload(&mut client, 1, 3_000_000).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 3_000_000);
}

#[tokio::test(start_paused = true)]
async fn windows_are_returned_as_a_body_is_read() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    client.send(&data_frames(1, WINDOW)).await;
    client.expect_nothing().await;
    let (mut body, mut read) = (dispatched.request.into_body(), 0);
    while read < WINDOW / 2 {
        read += in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap().len();
    }
    // Other streams get their window back at once, and more as it grows.
    let updates = [1, 1, 1, 2, 3, 4, 6, 9].map(|frames| Event::WindowUpdate(0, frames << 14));
    client.expect(updates).await;
    client.expect([Event::WindowUpdate(1, read as u32)]).await;
    client.send(&data_frames(1, 27 << 14)).await;
    client.expect([Event::WindowUpdate(0, 5 << 14)]).await;
}

#[tokio::test(start_paused = true)]
async fn data_beyond_the_connection_window_ends_the_connection() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    client.send(&[data_frames(1, WINDOW), raw_frame(DATA, 0, 1, "a")].concat()).await;
    client.expect([Event::GoAway(1, Reason::FLOW_CONTROL_ERROR), Event::Closed]).await;
    assert!(dispatched.response.is_closed());
}

#[tokio::test(start_paused = true)]
async fn padding_is_flow_controlled() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    let mut reading = tokio::spawn(dispatched.request.into_body().collect());
    let padded = raw_frame(DATA, PADDED, 1, [&[255][..], b"a", &[0; 255]].concat());
    // More than the windows would hold, were padding not returned.
    for _ in 0..WINDOW / 257 / 2 + 10 {
        client.send(&padded).await;
        tokio::task::yield_now().await;
    }
    let event = [client.next_event().await, client.next_event().await];
    assert!(matches!(event, [Event::WindowUpdate(0 | 1, _), Event::WindowUpdate(0 | 1, _)]), "{event:?}");
    client.send(&raw_frame(DATA, END_STREAM, 1, "")).await;
    let read = in_time(&mut reading).await.unwrap().unwrap().to_bytes();
    assert_eq!(read.len(), WINDOW / 257 / 2 + 10);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_body_returns_its_window() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    client.send(&data_frames(1, WINDOW)).await;
    client.expect_nothing().await;
    drop(dispatched.request);
    client.expect([Event::WindowUpdate(0, WINDOW as u32)]).await;

    let dispatched = client.request(&post(3, &[])).await;
    client.send(&data_frames(3, WINDOW)).await;
    client.expect_nothing().await;
    client.send(&rst_stream(3, Reason::CANCEL)).await;
    client.expect([Event::WindowUpdate(0, WINDOW as u32)]).await;
    drop(dispatched);
    client.expect_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn data_beyond_the_stream_window_resets_it_alone() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    client.request(&post(1, &[])).await.respond(whole(200, "waits"));
    client.expect([head(1, 200, &[("content-length", "5")], false)]).await;
    client.send(&data_frames(1, WINDOW)).await;
    // Half of the window then, in whole frames.
    client.expect([Event::WindowUpdate(0, 360_448), Event::WindowUpdate(0, 360_448)]).await;
    client.send(&raw_frame(DATA, 0, 1, "a")).await;
    client.expect([Event::Reset(1, Reason::FLOW_CONTROL_ERROR)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_request_is_discarded_after_the_response() {
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
async fn discarding_is_bounded_in_time() {
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
async fn discarding_is_bounded_in_bytes() {
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
async fn an_upload_is_reset_only_after_the_response() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    client.request(&post(1, &[])).await.respond(whole(413, "too much"));
    client.expect([head(1, 413, &[("content-length", "8")], false)]).await;
    client.send(&data_frames(1, 100_000)).await;
    client.expect_nothing().await;
    client.send(&window_update(1, 3)).await;
    client.expect([data(1, "too", false)]).await;
    client.send(&window_update(1, 5)).await;
    client.expect([data(1, " much", true), Event::Reset(1, Reason::NO_ERROR)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_may_be_read_after_the_response() {
    let mut client = Client::new().await;
    let Dispatched { request, response } = client.request(&post(1, &[])).await;
    let _ = response.send(whole(200, "early"));
    client.expect([head(1, 200, &[("content-length", "5")], false), data(1, "early", true)]).await;
    let reading = tokio::spawn(request.into_body().collect());
    client.expect_nothing_for(Duration::from_secs(5)).await;
    client.send(&data_frames(1, 100_000)).await;
    client.send(&raw_frame(DATA, END_STREAM, 1, "")).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 100_000);
    client.expect_alive(3).await;
}

const EXPECT: &[(&str, &str)] = &[("expect", "100-continue")];

#[tokio::test(start_paused = true)]
async fn reading_an_expected_body_sends_100() {
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
async fn a_response_may_precede_100() {
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

#[tokio::test(start_paused = true)]
async fn an_unread_stream_stalls_no_other() {
    let mut client = Client::new().await;
    let unread = client.request(&post(1, &[])).await;
    client.send(&data_frames(1, 600 << 10)).await;
    let dispatched = client.request(&post(3, &[])).await;
    let reading = tokio::spawn(dispatched.request.into_body().collect());
    let (mut left, mut room) = (2_000_000, WINDOW - (600 << 10));
    while left > 0 {
        let size = left.min(DEFAULT_FRAME_SIZE).min(room);
        if size == 0 {
            // The stream's own window is returned too.
            if let Event::WindowUpdate(0, more) = client.next_event().await {
                room += more as usize;
            }
            continue;
        }
        (left, room) = (left - size, room - size);
        client.send(&raw_frame(DATA, if left == 0 { END_STREAM } else { 0 }, 3, vec![b'a'; size])).await;
    }
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 2_000_000);
    drop(unread);
}
