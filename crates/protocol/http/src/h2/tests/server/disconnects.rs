//! Connections that end abruptly.

use super::*;

/// Brings two requests in flight: the body of one is being read, and the response to the other is being sent.
async fn in_flight(client: &mut Client) -> (JoinHandle<bool>, oneshot::Sender<BoxResponse>, Pieces) {
    let Dispatched { request, response } = client.request(&post(1, &[])).await;
    client.send(&raw_frame(DATA, 0, 1, "some")).await;
    let reading = tokio::spawn(async move { request.into_body().collect().await.is_err() });
    let (pieces, streaming) = streamed();
    client.request(&get(3, "/")).await.respond(streaming);
    pieces.send(piece("some")).unwrap();
    client.expect([head(3, 200, &[], false), data(3, "some", false)]).await;
    client.expect_nothing().await;
    (reading, response, pieces)
}

#[tokio::test(start_paused = true)]
async fn client_disconnect_fails_bodies_read_by_services() {
    let mut client = Client::new().await;
    let (reading, mut response, pieces) = in_flight(&mut client).await;
    client.ended().await.unwrap();
    assert!(in_time(reading).await.unwrap(), "the body looks complete");
    in_time(response.closed()).await;
    in_time(pieces.closed()).await;
}

#[tokio::test(start_paused = true)]
async fn client_disconnect_within_frame_fails_body_and_ends_connection() {
    for cut in [1, HEADER_LEN - 1, HEADER_LEN, HEADER_LEN + 3] {
        let mut client = Client::new().await;
        let (reading, mut response, _pieces) = in_flight(&mut client).await;
        client.send(&raw_frame(DATA, END_STREAM, 1, "body")[..cut]).await;
        client.ended().await.unwrap();
        assert!(in_time(reading).await.unwrap(), "the body seems whole after {cut} bytes");
        in_time(response.closed()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_server_connection_fails_its_streams() {
    let mut client = Client::new().await;
    let (reading, mut response, pieces) = in_flight(&mut client).await;
    client.serving.abort();
    assert!(in_time(&mut client.serving).await.unwrap_err().is_cancelled());
    assert!(in_time(reading).await.unwrap(), "the body looks complete");
    in_time(response.closed()).await;
    in_time(pieces.closed()).await;
    client.expect([Event::Closed]).await;
}

#[tokio::test(start_paused = true)]
async fn complete_request_body_stays_readable_after_connection_ends() {
    let mut client = Client::new().await;
    let dispatched = client.request(&[post(1, &[]), raw_frame(DATA, END_STREAM, 1, "whole")].concat()).await;
    client.ended().await.unwrap();
    assert_eq!(in_time(dispatched.request.into_body().collect()).await.unwrap().to_bytes(), "whole");
}

#[tokio::test(start_paused = true)]
async fn silent_client_keeps_its_http2_connection() {
    let mut client = Client::ahead(&[]);
    client.next_event().await;
    client.next_event().await;
    assert!(timeout(Duration::from_secs(30), client.next_event()).await.is_err());
    client.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_write_ends_connection() {
    let mut client = Client::with(&[(INITIAL_WINDOW_SIZE, 1 << 30)]).await;
    client.send(&window_update(0, 1 << 30)).await;
    let (pieces, response) = streamed();
    client.request(&get(1, "/")).await.respond(response);
    pieces.send(Ok(Frame::data(vec![b'x'; 2 * PIPE].into()))).unwrap();
    client.expect([head(1, 200, &[], false)]).await;
    let _ = client.ended().await;
    in_time(pieces.closed()).await;
}
