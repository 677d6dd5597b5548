//! Requests are said as there is room for them.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_request_is_said_whole() {
    let mut server = Server::new().await;
    let called = server.call(&Method::POST, whole("tea"));
    server.hears([head(1, "POST", false), data(1, "tea", true)]).await;
    server.send(&answer(1, "201", &[], true)).await;
    assert_eq!(answered(called).await.status(), 201);
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_is_asked_for_by_its_host_alone() {
    let mut server = Server::new().await;
    let _called = server.call(&Method::CONNECT, whole(""));
    let Heard::Head { fields, .. } = server.hear().await else { panic!("no head") };
    let names: Vec<_> = fields.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [":method", ":authority", "x-a"]);
}

#[tokio::test(start_paused = true)]
async fn pieces_are_said_as_they_come_and_trailers_after_them() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.hears([head(1, "POST", false)]).await;
    for text in ["tea", "milk"] {
        pieces.send(piece(text)).unwrap();
        server.hears([data(1, text, false)]).await;
    }
    let trailers = [("x-sum", "7"), ("connection", "close")];
    let trailers = trailers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    pieces.send(Ok(Frame::trailers(HeaderMap::from_iter(trailers)))).unwrap();
    let fields = vec![("x-sum".to_owned(), "7".to_owned())];
    server.hears([Heard::Head { stream: 1, fields, ends: true }]).await;
    server.send(&answer(1, "200", &[], true)).await;
    answered(called).await;
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_exactly_the_room_that_there_is() {
    let mut server = Server::with(&[(INITIAL_WINDOW_SIZE, 10)]).await;
    let called = server.call(&Method::POST, whole(vec![b'x'; 100_000]));
    server.hears([head(1, "POST", false), data(1, vec![b'x'; 10], false)]).await;
    server.hears_nothing().await;
    server.send(&room(1, 200_000)).await;
    assert!(!server.hears_bytes(1, 65_525).await);
    server.hears_nothing().await;
    server.send(&room(0, 1 << 20)).await;
    assert!(server.hears_bytes(1, 100_000 - 65_535).await);
    server.send(&answer(1, "200", &[], true)).await;
    answered(called).await;
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_request_is_said_while_its_answer_is_read() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.hears([head(1, "POST", false)]).await;
    server.send(&answer(1, "200", &[], false)).await;
    let (answer, upload) = outcome(called).await.unwrap();
    let uploading = tokio::spawn(upload.expect("more is to be said"));
    pieces.send(piece("ping")).unwrap();
    server.hears([data(1, "ping", false)]).await;
    server.send(&said(DATA, END_STREAM, 1, "pong")).await;
    assert_eq!(&read(answer).await.unwrap().0[..], b"pong");
    // Nobody reads any more, and so nobody says anything more.
    server.hears([Heard::Reset(1, Reason::CANCEL)]).await;
    in_time(uploading).await.unwrap();
    assert!(pieces.is_closed());
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_takes_its_call_back() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    pieces.send(piece("so far")).unwrap();
    pieces.send(Err("broken".into())).unwrap();
    assert!(matches!(outcome(called).await, Err(Unanswered::Unsaid(_))));
    server.hears([head(1, "POST", false), data(1, "so far", false), Heard::Reset(1, Reason::CANCEL)]).await;
    server.goes_on(3).await;

    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.hears([head(5, "POST", false)]).await;
    server.send(&answer(5, "200", &[], false)).await;
    let (answer, upload) = outcome(called).await.unwrap();
    let uploading = tokio::spawn(upload.unwrap());
    pieces.send(Err("broken".into())).unwrap();
    server.hears([Heard::Reset(5, Reason::CANCEL)]).await;
    in_time(uploading).await.unwrap();
    assert_eq!(read(answer).await.unwrap_err(), Lost::GivenUp, "the server is not to blame");
    server.goes_on(7).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_heard_although_the_body_breaks_off() {
    let mut server = Server::new().await;
    let (pieces, body) = streamed();
    let called = server.call(&Method::POST, body);
    server.hears([head(1, "POST", false)]).await;
    server.send(&answer(1, "413", &[], true)).await;
    pieces.send(Err("broken".into())).unwrap();
    let (answer, upload) = outcome(called).await.unwrap();
    assert_eq!(answer.status(), 413);
    in_time(upload.unwrap()).await;
    server.hears([Heard::Reset(1, Reason::CANCEL)]).await;
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_answered_may_want_no_more() {
    let mut server = Server::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let called = server.call(&Method::POST, whole("too much"));
    server.hears([head(1, "POST", false)]).await;
    let end = said(DATA, END_STREAM, 1, "enough");
    server.send(&[answer(1, "200", &[], false), end, reset(1, Reason::NO_ERROR)].concat()).await;
    let (answer, upload) = outcome(called).await.unwrap();
    assert_eq!(&read(answer).await.unwrap().0[..], b"enough");
    in_time(upload.expect("nothing was said of it")).await;
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_wants_no_more_before_it_has_answered_gives_no_answer() {
    let mut server = Server::new().await;
    let called = server.got(1).await;
    server.send(&[answer(1, "200", &[], false), reset(1, Reason::NO_ERROR)].concat()).await;
    assert_eq!(read(answered(called).await).await.unwrap_err(), Lost::Reset(Reason::NO_ERROR));
    server.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_is_taken_back_and_what_comes_late_is_passed_over() {
    let mut server = Server::new().await;
    for n in 0..300 {
        let stream = 2 * n + 1;
        let called = server.got(stream).await;
        called.abort();
        server.hears([Heard::Reset(stream, Reason::CANCEL)]).await;
    }
    // Of the first ones it is not even remembered how they ended.
    for stream in [1, 3, 599] {
        server.send(&answer(stream, "200", &[("x-a", "b")], false)).await;
        server.send(&said(DATA, 0, stream, "late")).await;
        server.send(&[room(stream, 1), reset(stream, Reason::NO_ERROR)].concat()).await;
    }
    server.goes_on(601).await;
}
