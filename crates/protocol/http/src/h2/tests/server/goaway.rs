//! Graceful close.

use super::{
    super::super::{frame::MAX_31_BIT, lock},
    *,
};

/// Begins a graceful close. Returns the acknowledgement of the PING that follows the first GOAWAY.
async fn warned(client: &mut Client) -> Vec<u8> {
    lock(&client.session).go_away();
    client.expect([Event::GoAway(MAX_31_BIT, Reason::NO_ERROR)]).await;
    let Event::Ping(asks) = client.next_event().await else { panic!("no PING") };
    raw_frame(PING, ACK, 0, asks)
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_at_goaway_are_served() {
    let mut client = Client::new().await;
    let first = client.request(&get(1, "/first")).await;
    let event = warned(&mut client).await;
    client.expect_alive(3).await;
    let last = client.request(&get(5, "/last")).await;
    client.send(&event).await;
    client.expect([Event::GoAway(5, Reason::NO_ERROR)]).await;

    client
        .send(&[get(7, "/late"), post(9, &[]), data_frames(9, 10), rst_stream(9, Reason::CANCEL)].concat())
        .await;
    client.expect_nothing().await;
    last.respond(whole(200, "last"));
    client.expect([head(5, 200, &[("content-length", "4")], false), data(5, "last", true)]).await;
    client.expect_nothing().await;
    first.respond(whole(200, ""));
    client.expect([head(1, 200, &[], true), Event::Closed]).await;
    assert!(client.dispatched.try_recv().is_err(), "a late request was dispatched");
    client.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_connection_closes_after_shutdown_ping_is_acknowledged() {
    let mut client = Client::new().await;
    let event = warned(&mut client).await;
    lock(&client.session).go_away();
    client.expect_nothing().await;
    client.send(&raw_frame(PING, ACK, 0, [1; 8])).await;
    client.expect_nothing().await;
    client.send(&event).await;
    client.expect([Event::GoAway(0, Reason::NO_ERROR), Event::Closed]).await;
    client.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_connection_ends_when_its_last_request_is_cancelled() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    let event = warned(&mut client).await;
    client.send(&event).await;
    client.expect([Event::GoAway(1, Reason::NO_ERROR)]).await;
    client.send(&rst_stream(1, Reason::CANCEL)).await;
    // The reader of the body does not notice.
    client.expect_nothing().await;
    drop(dispatched);
    client.expect([Event::Closed]).await;
    client.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn header_blocks_after_goaway_are_still_decoded() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[])).await;
    let event = warned(&mut client).await;
    client.send(&event).await;
    client.expect([Event::GoAway(1, Reason::NO_ERROR)]).await;
    // The last field enters the table, and the trailers refer to it.
    let late = [header_block(&GET), vec![0x40, 1, b'a', 1, b'b']].concat();
    client.send(&raw_frame(HEADERS, END_HEADERS | END_STREAM, 3, late)).await;
    client.send(&raw_frame(HEADERS, END_HEADERS | END_STREAM, 1, [0xbe])).await;
    let collected = in_time(dispatched.request.into_body().collect()).await.unwrap();
    assert_eq!(collected.trailers(), Some(&headers(&[("a", "b")])));
}

#[tokio::test(start_paused = true)]
async fn protocol_violation_after_goaway_is_still_reported() {
    let mut client = Client::new().await;
    let dispatched = client.request(&get(1, "/")).await;
    let event = warned(&mut client).await;
    client.send(&[event, raw_frame(PING, 0, 1, [0; 8])].concat()).await;
    client
        .expect([Event::GoAway(1, Reason::NO_ERROR), Event::GoAway(1, Reason::PROTOCOL_ERROR), Event::Closed])
        .await;
    assert!(dispatched.response.is_closed());
}

#[tokio::test(start_paused = true)]
async fn silent_http2_client_is_pinged_and_its_ack_counts_as_activity() {
    let mut client = Client::new().await;
    assert!(lock(&client.session).take_activity());
    assert!(!lock(&client.session).take_activity());
    lock(&client.session).send_ping();
    let Event::Ping(asks) = client.next_event().await else { panic!("no PING") };
    client.send(&raw_frame(PING, ACK, 0, asks)).await;
    client.expect_nothing().await;
    assert!(lock(&client.session).take_activity());
}

#[tokio::test(start_paused = true)]
async fn client_that_sent_goaway_is_served_and_closed() {
    let mut client = Client::new().await;
    let dispatched = client.request(&get(1, "/")).await;
    client.send(&raw_frame(GOAWAY, 0, 0, [0; 8])).await;
    client.expect_nothing().await;
    dispatched.respond(whole(200, "last"));
    client
        .expect([head(1, 200, &[("content-length", "4")], false), data(1, "last", true), Event::Closed])
        .await;
}
