//! Floods of frames without progress.

use super::{
    super::super::{Violation, frame::PRIORITY},
    *,
};

/// Size of the token bucket; the first SETTINGS take one token.
const MOST: usize = 10_000;

fn pings(count: usize) -> Vec<u8> {
    raw_frame(PING, 0, 0, b"are you?").repeat(count)
}

async fn hears_pongs(client: &mut Client, count: usize) {
    for _ in 0..count {
        client.expect([Event::Pong(Bytes::from_static(b"are you?"))]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ping_frame_is_acknowledged_with_its_payload() {
    let mut client = Client::new().await;
    client.send(&raw_frame(PING, 0xfe, 0, [1, 2, 3, 4, 5, 6, 7, 8])).await;
    client.expect([Event::Pong(vec![1, 2, 3, 4, 5, 6, 7, 8].into())]).await;
}

#[tokio::test(start_paused = true)]
async fn http2_ping_flood_ends_connection() {
    let mut client = Client::new().await;
    client.send(&pings(MOST - 1)).await;
    hears_pongs(&mut client, MOST - 1).await;
    client.send(&pings(1)).await;
    client.expect([Event::GoAway(0, Reason::ENHANCE_YOUR_CALM), Event::Closed]).await;
    assert!(matches!(client.ended().await, Err(ConnectionError::Violation(Violation::FLOOD))));
}

#[tokio::test(start_paused = true)]
async fn pings_between_data_frames_do_not_count_as_flood() {
    let mut client = Client::new().await;
    let _asked = client.request(&post(1, &[])).await;
    for _ in 0..MOST / 5 {
        client.send(&[raw_frame(DATA, 0, 1, "a"), pings(10)].concat()).await;
        hears_pongs(&mut client, 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_frame_flood_ends_connection() {
    for frame in [
        settings_frame(&[]),
        raw_frame(SETTINGS, ACK, 0, []),
        raw_frame(DATA, 0, 1, ""),
        window_update(1, 1),
        raw_frame(PRIORITY, 0, 1, [0, 0, 0, 3, 1]),
        raw_frame(0xfa, 0, 0, []),
    ] {
        let mut client = Client::new().await;
        let dispatched = client.request(&post(1, &[])).await;
        client.send(&frame.repeat(MOST + 100)).await;
        let mut event = client.next_event().await;
        while event == Event::SettingsAck {
            event = client.next_event().await;
        }
        assert_eq!(event, Event::GoAway(1, Reason::ENHANCE_YOUR_CALM), "{frame:?}");
        assert!(dispatched.response.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn server_stops_reading_client_that_does_not_read() {
    let mut client = Client::new().await;
    let _asked = client.request(&post(1, &[])).await;
    // Far more than both directions of the pipe hold.
    let many = [raw_frame(DATA, 0, 1, "a"), pings(10)].concat().repeat(20_000);
    let sent = timeout(Duration::from_secs(1), client.wire.io.write_all(&many)).await;
    assert!(sent.is_err(), "all of it was read");
    hears_pongs(&mut client, PIPE / 17).await;
}
