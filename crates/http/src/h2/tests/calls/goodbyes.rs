//! Connections that end, from either side.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_says_what_it_has_seen() {
    let mut server = Server::new().await;
    let calls = [server.got(1).await, server.got(3).await, server.got(5).await];
    server.send(&goodbye((1 << 31) - 1, Reason::NO_ERROR)).await;
    server.send(&goodbye(3, Reason::NO_ERROR)).await;
    let [first, second, third] = calls;
    assert_eq!(lost(third).await, Lost::Unseen(Reason::NO_ERROR));
    assert_eq!(server.place(), Place::None);
    server.send(&goodbye(1, Reason::ENHANCE_YOUR_CALM)).await;
    assert_eq!(lost(second).await, Lost::Unseen(Reason::ENHANCE_YOUR_CALM));
    // What it says of them all the same harms nobody.
    server.send(&[answer(5, "200", &[], false), said(DATA, 0, 5, "late")].concat()).await;
    server.hears_nothing().await;
    server.send(&answer(1, "200", &[], true)).await;
    assert_eq!(answered(first).await.status(), 200);
    // Nothing is left to wait for.
    server.hears([Heard::End]).await;
    in_time(server.driving).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_came_whole_is_read_when_its_server_is_gone() {
    let mut server = Server::new().await;
    let calls = [server.got(1).await, server.got(3).await, server.got(5).await];
    let sent = [answer(1, "200", &[], false), bytes(1, 100_000), said(DATA, END_STREAM, 1, "tea")];
    server
        .send(&[&sent.concat()[..], &answer(3, "200", &[], false), &said(DATA, 0, 3, "so far")].concat())
        .await;
    drop(server.wire);
    in_time(server.driving).await.unwrap();
    let [first, second, third] = calls;
    assert_eq!(read(answered(first).await).await.unwrap().0.len(), 100_003);
    let mut body = answered(second).await.into_body();
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "so far");
    let broken = Lost::Broken(std::io::ErrorKind::UnexpectedEof);
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap_err(), broken);
    assert_eq!(lost(third).await, broken);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_left_waiting_when_a_connection_is_given_up() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    server.driving.abort();
    assert_eq!(lost(called).await, Lost::Broken(std::io::ErrorKind::TimedOut));
    assert_eq!(server.place(), Place::None);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_retired_ends_when_its_calls_have() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    lock(&server.session).retire();
    assert_eq!(server.place(), Place::None);
    server.hears([Heard::Goodbye(0, Reason::NO_ERROR)]).await;
    server.send(&answer(1, "200", &[], true)).await;
    assert_eq!(answered(called).await.status(), 200);
    server.hears([Heard::End]).await;
    in_time(server.driving).await.unwrap();
}
