//! Clients cancel requests.

use super::{super::super::frame::MAX_31_BIT, *};

#[tokio::test(start_paused = true)]
async fn cancelled_http2_request_drops_its_service_future() {
    let mut client = Client::new().await;
    let Dispatched { request, mut response } = client.request(&post(1, &[])).await;
    client.send(&raw_frame(DATA, 0, 1, "some")).await;
    client.send(&rst_stream(1, Reason::CANCEL)).await;
    in_time(response.closed()).await;
    let error = in_time(request.into_body().frame()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the client cancelled the request: the stream was reset: CANCEL");
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_http2_request_fails_its_request_body() {
    let mut client = Client::new().await;
    let Dispatched { request, response } = client.request(&post(1, &[])).await;
    let reading = tokio::spawn(request.into_body().collect());
    client.expect_nothing().await;
    client.send(&rst_stream(1, Reason(0x77))).await;
    let error = in_time(reading).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the client cancelled the request: the stream was reset: error code 0x77");
    assert!(response.is_closed());
}

#[tokio::test(start_paused = true)]
async fn cancelled_http2_request_drops_its_response_body() {
    let mut client = Client::new().await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(piece("some")).unwrap();
    client.expect([head(1, 200, &[], false), data(1, "some", false)]).await;
    client.send(&rst_stream(1, Reason::CANCEL)).await;
    in_time(pieces.closed()).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_response_waiting_for_send_window_is_dropped() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(piece("some")).unwrap();
    client.expect([head(1, 200, &[], false)]).await;
    client.expect_nothing().await;
    client.send(&rst_stream(1, Reason::CANCEL)).await;
    in_time(pieces.closed()).await;
    // Late frames change nothing.
    client.send(&[window_update(1, 10), window_update(1, 0), rst_stream(1, Reason::CANCEL)].concat()).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn window_update_for_cancelled_request_is_ignored() {
    let mut client = Client::new().await;
    let dispatched = client.request(&[post(1, &[]), window_update(1, MAX_31_BIT - 65_535)].concat()).await;
    client
        .send(&[rst_stream(1, Reason::CANCEL), settings_frame(&[(INITIAL_WINDOW_SIZE, 70_000)])].concat())
        .await;
    client.expect([Event::SettingsAck]).await;
    client.expect_alive(3).await;
    // The stream is still in use until here.
    drop(dispatched);
}

fn cancelled(streams: impl Iterator<Item = u32>) -> Vec<u8> {
    streams.flat_map(|stream| [get(stream, "/"), rst_stream(stream, Reason::CANCEL)].concat()).collect()
}

#[tokio::test(start_paused = true)]
async fn excess_early_stream_resets_end_connection() {
    let mut client = Client::new().await;
    client.send(&cancelled((1..).step_by(2).take(64))).await;
    client.expect_alive(201).await;
    client.send(&cancelled((301..).step_by(2).take(65))).await;
    client.expect([Event::GoAway(429, Reason::ENHANCE_YOUR_CALM), Event::Closed]).await;
    assert!(matches!(client.ended().await, Err(ConnectionError::Violation(_))));
}

#[tokio::test(start_paused = true)]
async fn request_reset_at_once_is_not_dispatched() {
    let mut client = Client::new().await;
    client.send(&[cancelled([1, 3].into_iter()), get(5, "/after")].concat()).await;
    assert_eq!(client.dispatched().await.request.uri().path(), "/after");
}

#[tokio::test(start_paused = true)]
async fn cancelling_dispatched_requests_does_not_count_as_flood() {
    let mut client = Client::new().await;
    for stream in (1..600).step_by(2) {
        let mut dispatched = client.request(&get(stream, "/")).await;
        client.send(&rst_stream(stream, Reason::CANCEL)).await;
        in_time(dispatched.response.closed()).await;
    }
    client.expect_alive(601).await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_http2_requests_are_limited_to_announced_maximum() {
    let mut client = Client::new().await;
    let mut in_flight = Vec::new();
    for stream in (1..512).step_by(2) {
        in_flight.push(client.request(&get(stream, "/")).await);
    }
    client.send(&get(513, "/")).await;
    client.expect([Event::Reset(513, Reason::REFUSED_STREAM)]).await;
    in_flight.pop().unwrap().respond(whole(200, ""));
    client.expect([head(511, 200, &[], true)]).await;
    in_flight.push(client.request(&get(515, "/")).await);
    client.send(&rst_stream(1, Reason::CANCEL)).await;
    in_time(in_flight[0].response.closed()).await;
    client.expect_alive(517).await;
}
