//! Requests that are taken back.

use super::{super::super::frame::HIGHEST, *};

#[tokio::test(start_paused = true)]
async fn whoever_answers_a_request_that_is_taken_back_is_stopped() {
    let mut program = Program::new().await;
    let Asked { request, mut answer } = program.asks(&post(1, &[])).await;
    program.send(&said(DATA, 0, 1, "some")).await;
    program.send(&reset(1, Reason::CANCEL)).await;
    in_time(answer.closed()).await;
    let error = in_time(request.into_body().frame()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the request was taken back: the stream was reset: CANCEL");
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_body_learns_that_it_is_taken_back() {
    let mut program = Program::new().await;
    let Asked { request, answer } = program.asks(&post(1, &[])).await;
    let reading = tokio::spawn(request.into_body().collect());
    program.hears_nothing().await;
    program.send(&reset(1, Reason(0x77))).await;
    let error = in_time(reading).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the request was taken back: the stream was reset: error code 0x77");
    assert!(answer.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_taken_back_is_no_longer_made() {
    let mut program = Program::new().await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(piece("some")).unwrap();
    program.hears([head(1, 200, &[], false), data(1, "some", false)]).await;
    program.send(&reset(1, Reason::CANCEL)).await;
    in_time(pieces.closed()).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_waits_for_room_is_dropped_when_it_is_taken_back() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(piece("some")).unwrap();
    program.hears([head(1, 200, &[], false)]).await;
    program.hears_nothing().await;
    program.send(&reset(1, Reason::CANCEL)).await;
    in_time(pieces.closed()).await;
    // What is said late about it changes nothing.
    program.send(&[room(1, 10), room(1, 0), reset(1, Reason::CANCEL)].concat()).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn the_window_of_a_request_that_was_taken_back_is_of_no_importance() {
    let mut program = Program::new().await;
    let asked = program.asks(&[post(1, &[]), room(1, HIGHEST - 65_535)].concat()).await;
    program.send(&[reset(1, Reason::CANCEL), set(&[(INITIAL_WINDOW_SIZE, 70_000)])].concat()).await;
    program.hears([Heard::Agreed]).await;
    program.goes_on(3).await;
    // Somebody still knows of it.
    drop(asked);
}

fn taken_back(streams: impl Iterator<Item = u32>) -> Vec<u8> {
    streams.flat_map(|stream| [get(stream, "/"), reset(stream, Reason::CANCEL)].concat()).collect()
}

#[tokio::test(start_paused = true)]
async fn few_requests_may_be_taken_back_before_they_were_looked_at() {
    let mut program = Program::new().await;
    program.send(&taken_back((1..).step_by(2).take(64))).await;
    program.goes_on(201).await;
    program.send(&taken_back((301..).step_by(2).take(65))).await;
    program.hears([Heard::Goodbye(429, Reason::ENHANCE_YOUR_CALM), Heard::End]).await;
    assert!(matches!(program.ended().await, Err(End::Violation(_))));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_taken_back_at_once_is_not_handed_on() {
    let mut program = Program::new().await;
    program.send(&[taken_back([1, 3].into_iter()), get(5, "/after")].concat()).await;
    assert_eq!(program.asked().await.request.uri().path(), "/after");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_looked_at_may_be_taken_back() {
    let mut program = Program::new().await;
    for stream in (1..600).step_by(2) {
        let mut asked = program.asks(&get(stream, "/")).await;
        program.send(&reset(stream, Reason::CANCEL)).await;
        in_time(asked.answer.closed()).await;
    }
    program.goes_on(601).await;
}

#[tokio::test(start_paused = true)]
async fn as_many_requests_are_taken_as_the_program_was_told() {
    let mut program = Program::new().await;
    let mut under_way = Vec::new();
    for stream in (1..512).step_by(2) {
        under_way.push(program.asks(&get(stream, "/")).await);
    }
    program.send(&get(513, "/")).await;
    program.hears([Heard::Reset(513, Reason::REFUSED_STREAM)]).await;
    under_way.pop().unwrap().answers(whole(200, ""));
    program.hears([head(511, 200, &[], true)]).await;
    under_way.push(program.asks(&get(515, "/")).await);
    program.send(&reset(1, Reason::CANCEL)).await;
    in_time(under_way[0].answer.closed()).await;
    program.goes_on(517).await;
}
