//! Answers are sent as there is room for them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use futures_util::StreamExt as _;

use super::*;

#[tokio::test(start_paused = true)]
async fn an_answer_takes_exactly_the_room_of_its_stream() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    program.asks(&get(1, "/")).await.answers(whole(200, vec![b'x'; 100]));
    program.hears([head(1, 200, &[("content-length", "100")], false)]).await;
    program.hears_nothing().await;
    for more in [10, 1, 50] {
        program.send(&room(1, more)).await;
        program.hears([data(1, vec![b'x'; more as usize], false)]).await;
        program.hears_nothing().await;
    }
    program.send(&room(1, 1000)).await;
    program.hears([data(1, vec![b'x'; 39], true)]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn answers_take_exactly_the_room_of_the_connection() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    program.asks(&get(1, "/")).await.answers(whole(200, vec![b'x'; 100_000]));
    program.hears([head(1, 200, &[("content-length", "100000")], false)]).await;
    assert!(!program.hears_bytes(1, 65_535).await);
    program.asks(&get(3, "/")).await.answers(whole(200, "second"));
    program.hears([head(3, 200, &[("content-length", "6")], false)]).await;
    program.hears_nothing().await;
    program.send(&room(1, 1000)).await;
    program.hears_nothing().await;

    program.send(&reset(3, Reason::CANCEL)).await;
    program.send(&room(0, 5)).await;
    program.hears([data(1, vec![b'x'; 5], false)]).await;
    program.hears_nothing().await;
    program.send(&room(0, 1 << 20)).await;
    assert!(program.hears_bytes(1, 100_000 - 65_540).await);
}

#[tokio::test(start_paused = true)]
async fn every_answer_gets_its_share_when_there_is_room_again() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    program.asks(&get(1, "/")).await.answers(whole(200, vec![b'x'; 65_535]));
    program.hears([head(1, 200, &[("content-length", "65535")], false)]).await;
    assert!(program.hears_bytes(1, 65_535).await);
    for stream in [3, 5, 7] {
        program.asks(&get(stream, "/")).await.answers(whole(200, "text"));
        program.hears([head(stream, 200, &[("content-length", "4")], false)]).await;
    }
    program.hears_nothing().await;
    program.send(&room(0, 12)).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let Heard::Data { stream, data, ends: true } = program.hear().await else {
            panic!("an answer lacks")
        };
        assert_eq!(data, "text");
        streams.push(stream);
    }
    streams.sort_unstable();
    assert_eq!(streams, [3, 5, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_window_may_become_less_than_nothing() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 100)]).await;
    program.asks(&get(1, "/")).await.answers(whole(200, vec![b'x'; 300]));
    program.hears([head(1, 200, &[("content-length", "300")], false), data(1, vec![b'x'; 100], false)]).await;
    program.send(&set(&[(INITIAL_WINDOW_SIZE, 40)])).await;
    program.hears([Heard::Agreed]).await;
    program.hears_nothing().await;
    program.send(&room(1, 60)).await;
    program.hears_nothing().await;
    program.send(&room(1, 1)).await;
    program.hears([data(1, "x", false)]).await;
    program.send(&set(&[(INITIAL_WINDOW_SIZE, 50)])).await;
    program.hears([Heard::Agreed, data(1, vec![b'x'; 10], false)]).await;
    program.send(&room(1, 1000)).await;
    program.hears([data(1, vec![b'x'; 189], true)]).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_even_if_there_is_less_room_than_none() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 4)]).await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(piece("text")).unwrap();
    program.hears([head(1, 200, &[], false), data(1, "text", false)]).await;
    program.send(&set(&[(INITIAL_WINDOW_SIZE, 0)])).await;
    program.hears([Heard::Agreed]).await;
    drop(pieces);
    program.hears([data(1, "", true)]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_without_room_ends() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 4)]).await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(piece("text")).unwrap();
    drop(pieces);
    program.hears([head(1, 200, &[], false), data(1, "text", false), data(1, "", true)]).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_of_an_answer_is_made_than_its_program_reads() {
    const PIECE: usize = 64 * 1024;
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 1 << 30)]).await;
    let made = Arc::new(AtomicUsize::new(0));
    let makes = Arc::clone(&made);
    let pieces = futures_util::stream::iter(0..100)
        .map(|_| Ok(Frame::data(vec![b'x'; PIECE].into())))
        .inspect(move |_| {
            makes.fetch_add(1, Relaxed);
        });
    let answer = Response::new(StreamBody::new(pieces).boxed_unsync());
    program.asks(&[room(0, 1 << 30), get(1, "/")].concat()).await.answers(answer);
    // The clock goes on when nobody has anything to do.
    tokio::time::sleep(Duration::from_millis(1)).await;
    // What the pipe holds, what waits to be sent, and the piece in between.
    assert!(made.load(Relaxed) * PIECE <= WINDOW + 4 * PIECE, "{made:?}");
    program.hears([head(1, 200, &[], false)]).await;
    assert!(!program.hears_bytes(1, 100 * PIECE).await);
    program.hears([data(1, "", true)]).await;
}
