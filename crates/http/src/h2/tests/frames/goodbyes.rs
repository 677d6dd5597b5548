//! How a connection ends from our side.

use super::{
    super::super::{frame::HIGHEST, lock},
    *,
};

/// The program is told that it should ask elsewhere; what it says when it has heard.
async fn warned(program: &mut Program) -> Vec<u8> {
    lock(&program.session).go_away();
    program.hears([Heard::Goodbye(HIGHEST, Reason::NO_ERROR)]).await;
    let Heard::Ping(asks) = program.hear().await else { panic!("nobody asks whether it has heard") };
    said(PING, ACK, 0, asks)
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_before_a_goodbye_was_heard_is_answered() {
    let mut program = Program::new().await;
    let first = program.asks(&get(1, "/first")).await;
    let heard = warned(&mut program).await;
    program.goes_on(3).await;
    let last = program.asks(&get(5, "/last")).await;
    program.send(&heard).await;
    program.hears([Heard::Goodbye(5, Reason::NO_ERROR)]).await;

    program.send(&[get(7, "/late"), post(9, &[]), bytes(9, 10), reset(9, Reason::CANCEL)].concat()).await;
    program.hears_nothing().await;
    last.answers(whole(200, "last"));
    program.hears([head(5, 200, &[("content-length", "4")], false), data(5, "last", true)]).await;
    program.hears_nothing().await;
    first.answers(whole(200, ""));
    program.hears([head(1, 200, &[], true), Heard::End]).await;
    assert!(program.asked.try_recv().is_err(), "a late request was handed on");
    program.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_is_asked_ends_as_soon_as_its_program_knows() {
    let mut program = Program::new().await;
    let heard = warned(&mut program).await;
    lock(&program.session).go_away();
    program.hears_nothing().await;
    program.send(&said(PING, ACK, 0, [1; 8])).await;
    program.hears_nothing().await;
    program.send(&heard).await;
    program.hears([Heard::Goodbye(0, Reason::NO_ERROR), Heard::End]).await;
    program.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_when_its_last_request_is_taken_back() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[])).await;
    let heard = warned(&mut program).await;
    program.send(&heard).await;
    program.hears([Heard::Goodbye(1, Reason::NO_ERROR)]).await;
    program.send(&reset(1, Reason::CANCEL)).await;
    // Whoever has the body has not heard of it.
    program.hears_nothing().await;
    drop(asked);
    program.hears([Heard::End]).await;
    program.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn late_heads_are_understood_lest_the_table_is_lost() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[])).await;
    let heard = warned(&mut program).await;
    program.send(&heard).await;
    program.hears([Heard::Goodbye(1, Reason::NO_ERROR)]).await;
    // The last field is put into the table, to which the trailers refer.
    let late = [block(&GET), vec![0x40, 1, b'a', 1, b'b']].concat();
    program.send(&said(HEADERS, END_HEADERS | END_STREAM, 3, late)).await;
    program.send(&said(HEADERS, END_HEADERS | END_STREAM, 1, [0xbe])).await;
    let collected = in_time(asked.request.into_body().collect()).await.unwrap();
    assert_eq!(collected.trailers(), Some(&headers(&[("a", "b")])));
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_told_after_a_goodbye_too() {
    let mut program = Program::new().await;
    let asked = program.asks(&get(1, "/")).await;
    let heard = warned(&mut program).await;
    program.send(&[heard, said(PING, 0, 1, [0; 8])].concat()).await;
    program
        .hears([Heard::Goodbye(1, Reason::NO_ERROR), Heard::Goodbye(1, Reason::PROTOCOL_ERROR), Heard::End])
        .await;
    assert!(asked.answer.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_quiet_program_is_asked_whether_it_is_there() {
    let mut program = Program::new().await;
    assert!(lock(&program.session).was_heard());
    assert!(!lock(&program.session).was_heard());
    lock(&program.session).probe();
    let Heard::Ping(asks) = program.hear().await else { panic!("nobody asks") };
    program.send(&said(PING, ACK, 0, asks)).await;
    program.hears_nothing().await;
    assert!(lock(&program.session).was_heard());
}

#[tokio::test(start_paused = true)]
async fn a_program_that_has_said_goodbye_is_answered_and_let_go() {
    let mut program = Program::new().await;
    let asked = program.asks(&get(1, "/")).await;
    program.send(&said(GOAWAY, 0, 0, [0; 8])).await;
    program.hears_nothing().await;
    asked.answers(whole(200, "last"));
    program.hears([head(1, 200, &[("content-length", "4")], false), data(1, "last", true), Heard::End]).await;
}
