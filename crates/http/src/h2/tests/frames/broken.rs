//! Connections that break.

use super::*;

/// Two requests under way: one whose body is read, and one whose answer is being said.
async fn under_way(program: &mut Program) -> (JoinHandle<bool>, oneshot::Sender<Answer>, Pieces) {
    let Asked { request, answer } = program.asks(&post(1, &[])).await;
    program.send(&said(DATA, 0, 1, "some")).await;
    let reading = tokio::spawn(async move { request.into_body().collect().await.is_err() });
    let (pieces, streaming) = streamed();
    program.asks(&get(3, "/")).await.answers(streaming);
    pieces.send(piece("some")).unwrap();
    program.hears([head(3, 200, &[], false), data(3, "some", false)]).await;
    program.hears_nothing().await;
    (reading, answer, pieces)
}

#[tokio::test(start_paused = true)]
async fn whoever_answers_a_program_that_has_left_learns_of_it() {
    let mut program = Program::new().await;
    let (reading, mut answer, pieces) = under_way(&mut program).await;
    program.ended().await.unwrap();
    assert!(in_time(reading).await.unwrap(), "the body seems whole");
    in_time(answer.closed()).await;
    in_time(pieces.closed()).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_may_leave_in_the_middle_of_a_frame() {
    for cut in [1, HEAD - 1, HEAD, HEAD + 3] {
        let mut program = Program::new().await;
        let (reading, mut answer, _pieces) = under_way(&mut program).await;
        program.send(&said(DATA, END_STREAM, 1, "body")[..cut]).await;
        program.ended().await.unwrap();
        assert!(in_time(reading).await.unwrap(), "the body seems whole after {cut} bytes");
        in_time(answer.closed()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_dropped_ends_what_is_under_way() {
    let mut program = Program::new().await;
    let (reading, mut answer, pieces) = under_way(&mut program).await;
    program.serving.abort();
    assert!(in_time(&mut program.serving).await.unwrap_err().is_cancelled());
    assert!(in_time(reading).await.unwrap(), "the body seems whole");
    in_time(answer.closed()).await;
    in_time(pieces.closed()).await;
    program.hears([Heard::End]).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_has_come_whole_may_be_read_after_its_connection() {
    let mut program = Program::new().await;
    let asked = program.asks(&[post(1, &[]), said(DATA, END_STREAM, 1, "whole")].concat()).await;
    program.ended().await.unwrap();
    assert_eq!(in_time(asked.request.into_body().collect()).await.unwrap().to_bytes(), "whole");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_says_nothing_is_waited_for() {
    let mut program = Program::ahead(&[]);
    program.hear().await;
    program.hear().await;
    assert!(timeout(Duration::from_secs(30), program.hear()).await.is_err());
    program.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_sent_any_more_ends_the_connection() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 1 << 30)]).await;
    program.send(&room(0, 1 << 30)).await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(Ok(Frame::data(vec![b'x'; 2 * WINDOW].into()))).unwrap();
    program.hears([head(1, 200, &[], false)]).await;
    let _ = program.ended().await;
    in_time(pieces.closed()).await;
}
