//! What is taken as it may be said.

use http::{Method, Version};
use http_body::Body as _;

use super::{
    super::super::frame::{PADDED, PRIORITIZED, PRIORITY},
    *,
};

#[tokio::test(start_paused = true)]
async fn a_connection_begins_with_what_is_taken() {
    let mut program = Program::ahead(&[]);
    let [streams, window, fields] = [(3, 256), (INITIAL_WINDOW_SIZE, 1 << 20), (6, 68 * 1024)];
    let settings = set(&[streams, window, fields]);
    program
        .hears([Heard::Settings(settings[HEAD..].to_vec().into()), Heard::Room(0, (1 << 20) - 65_535)])
        .await;
    program.hears_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_is_looked_at() {
    let mut program = Program::ahead(&[set(&[]), get(1, "/early")].concat());
    assert_eq!(program.asked().await.request.uri(), "http://one.shop/early");
}

#[tokio::test(start_paused = true)]
async fn a_frame_may_come_in_any_pieces() {
    let mut program = Program::new().await;
    for byte in [post(1, &[]), said(DATA, END_STREAM, 1, "body")].concat() {
        program.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    let body = program.asked().await.request.into_body();
    assert_eq!(in_time(body.collect()).await.unwrap().to_bytes(), "body");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_handed_on_however_it_is_framed() {
    let mut program = Program::new().await;
    let fields = [&GET[..], &[("te", "trailers"), ("cookie", "a=b"), ("cookie", "c=d")]].concat();
    let block = block(&fields);
    let first = [&[2, 0, 0, 0, 7, 16], &block[..10], &[0, 0]].concat();
    let asked = program
        .asks(
            &[
                said(PRIORITY, 0, 9, [0, 0, 0, 3, 1]),
                said(HEADERS, PADDED | PRIORITIZED | END_STREAM, 1, first),
                said(CONTINUATION, 0, 1, []),
                said(CONTINUATION, END_HEADERS, 1, &block[10..]),
            ]
            .concat(),
        )
        .await;
    let request = asked.request;
    assert_eq!((request.method(), request.version()), (&Method::GET, Version::HTTP_2));
    assert_eq!(request.uri(), "http://one.shop/");
    let expected = headers(&[("te", "trailers"), ("cookie", "a=b"), ("cookie", "c=d")]);
    assert_eq!(request.headers(), &expected);
    assert!(request.body().is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn an_end_by_an_empty_data_frame_is_told_from_one_by_the_headers() {
    let mut program = Program::new().await;
    let empty = |stream| said(DATA, END_STREAM, stream, "");
    let together = program.asks(&[post(1, &[]), empty(1)].concat()).await;
    let apart = program.asks(&post(3, &[])).await;
    program.send(&[empty(3), said(PING, 0, 0, [7; 8])].concat()).await;
    program.hears([Heard::Pong(vec![7; 8].into())]).await;
    let mut held = Vec::new();
    for Asked { request, answer } in [together, apart] {
        let mut body = request.into_body();
        assert!(!body.is_end_stream() && body.size_hint().exact() == Some(0));
        assert!(in_time(body.frame()).await.is_none() && body.is_end_stream());
        held.push(answer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_handed_on_without_padding_and_with_trailers() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[("content-length", "8")])).await;
    program
        .send(
            &[
                said(DATA, PADDED, 1, [&[3][..], b"some", &[0; 3]].concat()),
                said(DATA, 0, 1, ""),
                said(DATA, PADDED, 1, [&[0][..], b"body"].concat()),
                said(HEADERS, END_HEADERS | END_STREAM, 1, block(&[("x-sum", "7")])),
            ]
            .concat(),
        )
        .await;
    let collected = in_time(asked.request.into_body().collect()).await.unwrap();
    assert_eq!(collected.trailers(), Some(&headers(&[("x-sum", "7")])));
    assert_eq!(collected.to_bytes(), "somebody");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_given_a_meaning_is_passed_over() {
    let mut program = Program::new().await;
    program
        .send(
            &[
                said(0xfa, 0xff, 0, [1; 100]),
                said(0xfa, 0xff, 77, []),
                said(PING, ACK, 0, [1; 8]),
                said(SETTINGS, ACK, 0, []),
            ]
            .concat(),
        )
        .await;
    program.send(&set(&[(0xf000, 7)])).await;
    program.hears([Heard::Agreed]).await;
    program.goes_on(1).await;
}
