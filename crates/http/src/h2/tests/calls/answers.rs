//! Answers are read as they come.

use super::*;

fn trailers(stream: u32) -> Vec<u8> {
    said(HEADERS, END_HEADERS | END_STREAM, stream, block(&[("grpc-status", "0")]))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_at_once_is_handed_on_whole() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    let sent = [answer(1, "200", &[("x-b", "c")], false), said(DATA, 0, 1, "tea"), trailers(1)];
    server.send(&sent.concat()).await;
    let answer = answered(called).await;
    assert_eq!(answer.headers()["x-b"], "c");
    assert!(lock(&server.session).is_idle(), "the stream is of nobody's use any more");
    let (text, trailers) = read(answer).await.unwrap();
    assert_eq!((&text[..], &trailers.unwrap()["grpc-status"]), (&b"tea"[..], &"0".parse().unwrap()));
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_piece_by_piece_is_read_so() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    server.send(&answer(1, "200", &[], false)).await;
    let mut body = answered(called).await.into_body();
    for text in ["tea", "milk"] {
        server.send(&said(DATA, 0, 1, text)).await;
        assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), text);
    }
    server.send(&trailers(1)).await;
    assert!(in_time(body.frame()).await.unwrap().unwrap().is_trailers());
    assert!(in_time(body.frame()).await.is_none());
    drop(body);
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn heads_before_the_answer_are_passed_over() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    let sent = ["100", "103"].map(|status| answer(1, status, &[("link", "x")], false)).concat();
    server.send(&[sent, answer(1, "200", &[], true)].concat()).await;
    let answer = answered(called).await;
    assert!(answer.status() == 200 && !answer.headers().contains_key("link"));
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn heads_before_the_answer_are_bounded() {
    let mut server = Server::new().await;
    let long = "y".repeat(120);
    for (stream, hints, fields) in [(1, 33, vec![("link", "x")]), (3, 32, vec![("link", &long[..]); 20])] {
        let called = server.got(stream).await;
        let hints = answer(stream, "103", &fields, false).repeat(hints);
        server.send(&[hints, answer(stream, "200", &[], true)].concat()).await;
        assert_eq!(lost(called).await, Lost::Malformed(Reason::PROTOCOL_ERROR));
        server.hears([Heard::Reset(stream, Reason::PROTOCOL_ERROR)]).await;
    }
    server.goes_on(5).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_body_may_say_how_long_it_would_be() {
    let mut server = Server::new().await;
    let called = server.call(&Method::HEAD, whole(""));
    server.hears([head(1, "HEAD", true)]).await;
    server.send(&answer(1, "200", &[("content-length", "10")], true)).await;
    assert_eq!(answered(called).await.headers()["content-length"], "10");
    let called = server.got(3).await;
    server.send(&answer(3, "304", &[("content-length", "10")], true)).await;
    assert_eq!(answered(called).await.status(), 304);
    server.goes_on(5).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_answer_makes_room_as_it_is_read_and_another_one_is_not_held_up() {
    let mut server = Server::new().await;
    let (long, other) = (server.got(1).await, server.got(3).await);
    server.send(&[answer(1, "200", &[], false), bytes(1, 1 << 20)].concat()).await;
    server.send(&[answer(3, "200", &[], false), said(DATA, END_STREAM, 3, "tea")].concat()).await;
    assert_eq!(&read(answered(other).await).await.unwrap().0[..], b"tea");
    let mut body = answered(long).await.into_body();
    let mut taken = 0;
    while taken < 1 << 19 {
        taken += in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap().len();
    }
    server.hears([Heard::Room(1, 1 << 19)]).await;
    server.hears_nothing().await;
    drop(body);
    server.hears([Heard::Reset(1, Reason::CANCEL)]).await;
    server.goes_on(5).await;
}

#[tokio::test(start_paused = true)]
async fn what_came_before_a_reset_is_read() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    let sent = [answer(1, "200", &[], false), said(DATA, 0, 1, "so far"), reset(1, Reason::INTERNAL_ERROR)];
    server.send(&sent.concat()).await;
    let mut body = answered(called).await.into_body();
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "so far");
    let error = in_time(body.frame()).await.unwrap().unwrap_err();
    assert_eq!(error, Lost::Reset(Reason::INTERNAL_ERROR));
    drop(body);
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_may_come_in_frames_but_not_without_end() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    let long = "y".repeat(100);
    let fields: Vec<(&str, &str)> = [(":status", "200")].into_iter().chain([("x", &long[..]); 100]).collect();
    let block = block(&fields);
    let (first, rest) = block.split_at(4_000);
    let frames = [said(HEADERS, END_STREAM, 1, first), said(CONTINUATION, 0, 1, &rest[..4_000])];
    server.send(&[&frames.concat()[..], &said(CONTINUATION, END_HEADERS, 1, &rest[4_000..])].concat()).await;
    assert_eq!(answered(called).await.headers().get_all("x").iter().count(), 100);
    server.goes_on(3).await;

    // More than is taken, which is no trouble to others.
    let called = server.got(5).await;
    server.send(&answer(5, "200", &[("x", "y"); 129], true)).await;
    assert_eq!(lost(called).await, Lost::TooLarge);
    server.hears([Heard::Reset(5, Reason::PROTOCOL_ERROR)]).await;
    let called = server.got(7).await;
    let fields = [&[(":status", "200")][..], &[("x", &long[..]); 700]].concat();
    for (n, piece) in super::block(&fields).chunks(16_000).enumerate() {
        server.send(&said(if n == 0 { HEADERS } else { CONTINUATION }, 0, 7, piece)).await;
    }
    server.send(&said(CONTINUATION, END_HEADERS, 7, [])).await;
    assert_eq!(lost(called).await, Lost::TooLarge);
    server.hears([Heard::Reset(7, Reason::PROTOCOL_ERROR)]).await;
    server.goes_on(9).await;

    let _called = server.got(11).await;
    server.send(&said(HEADERS, 0, 11, [0; 16_000])).await;
    for _ in 0..80 {
        server.send(&said(CONTINUATION, 0, 11, [0; 16_000])).await;
    }
    server.hears_why(Reason::ENHANCE_YOUR_CALM).await;
}
