//! Either side ends the connection.

use super::*;

#[tokio::test(start_paused = true)]
async fn goaway_fails_calls_on_unprocessed_streams() {
    let mut server = Server::new().await;
    let calls = [server.get(1).await, server.get(3).await, server.get(5).await];
    server.send(&goaway((1 << 31) - 1, Reason::NO_ERROR)).await;
    server.send(&goaway(3, Reason::NO_ERROR)).await;
    let [first, second, third] = calls;
    assert_eq!(error_of(third).await, StreamError::Unprocessed(Reason::NO_ERROR));
    assert_eq!(server.capacity(), Capacity::Closed);
    server.send(&goaway(1, Reason::ENHANCE_YOUR_CALM)).await;
    assert_eq!(error_of(second).await, StreamError::Unprocessed(Reason::ENHANCE_YOUR_CALM));
    // Frames on those streams are ignored.
    server.send(&[response_headers(5, "200", &[], false), raw_frame(DATA, 0, 5, "late")].concat()).await;
    server.expect_nothing().await;
    server.send(&response_headers(1, "200", &[], true)).await;
    assert_eq!(response_of(first).await.status(), 200);
    // No streams are left.
    server.expect([Event::Closed]).await;
    in_time(server.driving).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn complete_responses_stay_readable_after_http2_connection_ends() {
    let mut server = Server::new().await;
    let calls = [server.get(1).await, server.get(3).await, server.get(5).await];
    let sent = [
        response_headers(1, "200", &[], false),
        data_frames(1, 60_000),
        raw_frame(DATA, END_STREAM, 1, "tea"),
    ];
    server
        .send(
            &[&sent.concat()[..], &response_headers(3, "200", &[], false), &raw_frame(DATA, 0, 3, "so far")]
                .concat(),
        )
        .await;
    drop(server.wire);
    in_time(server.driving).await.unwrap();
    let [first, second, third] = calls;
    assert_eq!(read(response_of(first).await).await.unwrap().0.len(), 60_003);
    let mut body = response_of(second).await.into_body();
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "so far");
    let broken = StreamError::Io(std::io::ErrorKind::UnexpectedEof);
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap_err(), broken);
    assert_eq!(error_of(third).await, broken);
}

#[tokio::test(start_paused = true)]
async fn dropping_http2_connection_fails_its_calls() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    server.driving.abort();
    assert_eq!(error_of(called).await, StreamError::Io(std::io::ErrorKind::TimedOut));
    assert_eq!(server.capacity(), Capacity::Closed);
}

#[tokio::test(start_paused = true)]
async fn retired_http2_connection_closes_after_its_last_call() {
    let mut server = Server::new().await;
    let called = server.get(1).await;
    lock(&server.session).retire();
    assert_eq!(server.capacity(), Capacity::Closed);
    server.expect([Event::GoAway(0, Reason::NO_ERROR)]).await;
    server.send(&response_headers(1, "200", &[], true)).await;
    assert_eq!(response_of(called).await.status(), 200);
    server.expect([Event::Closed]).await;
    in_time(server.driving).await.unwrap();
}
