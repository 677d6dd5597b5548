//! Responses are sent as flow control allows.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use futures_util::StreamExt as _;

use super::*;

#[tokio::test(start_paused = true)]
async fn response_uses_exactly_stream_send_window() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    client.request(&get(1, "/")).await.respond(whole(200, vec![b'x'; 100]));
    client.expect([head(1, 200, &[("content-length", "100")], false)]).await;
    client.expect_nothing().await;
    for more in [10, 1, 50] {
        client.send(&window_update(1, more)).await;
        client.expect([data(1, vec![b'x'; more as usize], false)]).await;
        client.expect_nothing().await;
    }
    client.send(&window_update(1, 1000)).await;
    client.expect([data(1, vec![b'x'; 39], true)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn responses_use_exactly_connection_send_window() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    client.request(&get(1, "/")).await.respond(whole(200, vec![b'x'; 100_000]));
    client.expect([head(1, 200, &[("content-length", "100000")], false)]).await;
    assert!(!client.expect_bytes(1, 65_535).await);
    client.request(&get(3, "/")).await.respond(whole(200, "second"));
    client.expect([head(3, 200, &[("content-length", "6")], false)]).await;
    client.expect_nothing().await;
    client.send(&window_update(1, 1000)).await;
    client.expect_nothing().await;

    client.send(&rst_stream(3, Reason::CANCEL)).await;
    client.send(&window_update(0, 5)).await;
    client.expect([data(1, vec![b'x'; 5], false)]).await;
    client.expect_nothing().await;
    client.send(&window_update(0, 1 << 20)).await;
    assert!(client.expect_bytes(1, 100_000 - 65_540).await);
}

#[tokio::test(start_paused = true)]
async fn reopened_connection_send_window_is_shared_by_all_responses() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    client.request(&get(1, "/")).await.respond(whole(200, vec![b'x'; 65_535]));
    client.expect([head(1, 200, &[("content-length", "65535")], false)]).await;
    assert!(client.expect_bytes(1, 65_535).await);
    for stream in [3, 5, 7] {
        client.request(&get(stream, "/")).await.respond(whole(200, "text"));
        client.expect([head(stream, 200, &[("content-length", "4")], false)]).await;
    }
    client.expect_nothing().await;
    client.send(&window_update(0, 12)).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let Event::Data { stream, data, ends: true } = client.next_event().await else {
            panic!("a response is missing")
        };
        assert_eq!(data, "text");
        streams.push(stream);
    }
    streams.sort_unstable();
    assert_eq!(streams, [3, 5, 7]);
}

#[tokio::test(start_paused = true)]
async fn settings_frame_may_make_send_window_negative() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 100)]).await;
    client.request(&get(1, "/")).await.respond(whole(200, vec![b'x'; 300]));
    client.expect([head(1, 200, &[("content-length", "300")], false), data(1, vec![b'x'; 100], false)]).await;
    client.send(&settings_frame(&[(INITIAL_WINDOW_SIZE, 40)])).await;
    client.expect([Event::SettingsAck]).await;
    client.expect_nothing().await;
    client.send(&window_update(1, 60)).await;
    client.expect_nothing().await;
    client.send(&window_update(1, 1)).await;
    client.expect([data(1, "x", false)]).await;
    client.send(&settings_frame(&[(INITIAL_WINDOW_SIZE, 50)])).await;
    client.expect([Event::SettingsAck, data(1, vec![b'x'; 10], false)]).await;
    client.send(&window_update(1, 1000)).await;
    client.expect([data(1, vec![b'x'; 189], true)]).await;
}

#[tokio::test(start_paused = true)]
async fn response_ends_despite_negative_send_window() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 4)]).await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(piece("text")).unwrap();
    client.expect([head(1, 200, &[], false), data(1, "text", false)]).await;
    client.send(&settings_frame(&[(INITIAL_WINDOW_SIZE, 0)])).await;
    client.expect([Event::SettingsAck]).await;
    drop(pieces);
    client.expect([data(1, "", true)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn empty_end_stream_frame_needs_no_send_window() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 4)]).await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(piece("text")).unwrap();
    drop(pieces);
    client.expect([head(1, 200, &[], false), data(1, "text", false), data(1, "", true)]).await;
}

#[tokio::test(start_paused = true)]
async fn response_body_is_polled_only_as_fast_as_client_reads() {
    const PIECE: usize = 64 * 1024;
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 1 << 30)]).await;
    let made = Arc::new(AtomicUsize::new(0));
    let makes = Arc::clone(&made);
    let pieces = futures_util::stream::iter(0..100)
        .map(|_| Ok(Frame::data(vec![b'x'; PIECE].into())))
        .inspect(move |_| {
            makes.fetch_add(1, Relaxed);
        });
    let response = Response::new(StreamBody::new(pieces).boxed_unsync());
    client.request(&[window_update(0, 1 << 30), get(1, "/")].concat()).await.respond(response);
    // The clock advances when all tasks are idle.
    tokio::time::sleep(Duration::from_millis(1)).await;
    // At most what the pipe holds, the send buffer, and the piece in between.
    assert!(made.load(Relaxed) * PIECE <= PIPE + 4 * PIECE, "{made:?}");
    client.expect([head(1, 200, &[], false)]).await;
    assert!(!client.expect_bytes(1, 100 * PIECE).await);
    client.expect([data(1, "", true)]).await;
}
