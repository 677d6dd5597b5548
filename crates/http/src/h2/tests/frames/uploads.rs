//! Bodies of requests, which come as they are read.

use super::{super::super::frame::PADDED, *};

/// What may still be sent, as the program was told.
struct Ahead {
    stream: usize,
    connection: usize,
}

/// Sends a body as there is room for it.
async fn upload(program: &mut Program, stream: u32, mut left: usize) {
    let mut ahead = Ahead { stream: WINDOW, connection: WINDOW };
    while left > 0 {
        let size = left.min(USUAL).min(ahead.stream).min(ahead.connection);
        if size == 0 {
            match program.hear().await {
                Heard::Room(0, more) => ahead.connection += more as usize,
                Heard::Room(of, more) if of == stream => ahead.stream += more as usize,
                other => panic!("{other:?}, and {left} bytes wait"),
            }
            continue;
        }
        left -= size;
        let flags = if left == 0 { END_STREAM } else { 0 };
        program.send(&said(DATA, flags, stream, vec![b'a'; size])).await;
        ahead.stream -= size;
        ahead.connection -= size;
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_body_that_is_read_comes_whole() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[("content-length", "3000000")])).await;
    let reading = tokio::spawn(asked.request.into_body().collect());
    upload(&mut program, 1, 3_000_000).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 3_000_000);
}

#[tokio::test(start_paused = true)]
async fn room_is_told_of_as_a_body_is_read() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[])).await;
    program.send(&bytes(1, WINDOW)).await;
    program.hears_nothing().await;
    let (mut body, mut read) = (asked.request.into_body(), 0);
    while read < WINDOW / 2 {
        read += in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap().len();
    }
    // Other requests have room again at once, and more as it grows.
    let told = [1, 1, 1, 2, 3, 4, 6, 9].map(|frames| Heard::Room(0, frames << 14));
    program.hears(told).await;
    program.hears([Heard::Room(1, read as u32)]).await;
    program.send(&bytes(1, 27 << 14)).await;
    program.hears([Heard::Room(0, 5 << 14)]).await;
}

#[tokio::test(start_paused = true)]
async fn more_than_there_is_room_for_ends_the_connection() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[])).await;
    program.send(&[bytes(1, WINDOW), said(DATA, 0, 1, "a")].concat()).await;
    program.hears([Heard::Goodbye(1, Reason::FLOW_CONTROL_ERROR), Heard::End]).await;
    assert!(asked.answer.is_closed());
}

#[tokio::test(start_paused = true)]
async fn padding_takes_room_and_gives_it_back() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[])).await;
    let mut reading = tokio::spawn(asked.request.into_body().collect());
    let padded = said(DATA, PADDED, 1, [&[255][..], b"a", &[0; 255]].concat());
    // As many as the windows hold, were nothing given back, and more.
    for _ in 0..WINDOW / 257 / 2 + 10 {
        program.send(&padded).await;
        tokio::task::yield_now().await;
    }
    let heard = [program.hear().await, program.hear().await];
    assert!(matches!(heard, [Heard::Room(0 | 1, _), Heard::Room(0 | 1, _)]), "{heard:?}");
    program.send(&said(DATA, END_STREAM, 1, "")).await;
    let read = in_time(&mut reading).await.unwrap().unwrap().to_bytes();
    assert_eq!(read.len(), WINDOW / 257 / 2 + 10);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_was_not_read_gives_its_room_back_when_it_is_let_go() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[])).await;
    program.send(&bytes(1, WINDOW)).await;
    program.hears_nothing().await;
    drop(asked.request);
    program.hears([Heard::Room(0, WINDOW as u32)]).await;

    let asked = program.asks(&post(3, &[])).await;
    program.send(&bytes(3, WINDOW)).await;
    program.hears_nothing().await;
    program.send(&reset(3, Reason::CANCEL)).await;
    program.hears([Heard::Room(0, WINDOW as u32)]).await;
    drop(asked);
    program.hears_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn more_than_a_stream_has_room_for_ends_it_alone() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    program.asks(&post(1, &[])).await.answers(whole(200, "waits"));
    program.hears([head(1, 200, &[("content-length", "5")], false)]).await;
    program.send(&bytes(1, WINDOW)).await;
    // Half of what is left then, in whole frames.
    program.hears([Heard::Room(0, 360_448), Heard::Room(0, 360_448)]).await;
    program.send(&said(DATA, 0, 1, "a")).await;
    program.hears([Heard::Reset(1, Reason::FLOW_CONTROL_ERROR)]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_an_answered_request_is_waited_for() {
    let mut program = Program::new().await;
    program.asks(&post(1, &[])).await.answers(whole(413, "too much"));
    program.hears([head(1, 413, &[("content-length", "8")], false), data(1, "too much", true)]).await;
    program.send(&bytes(1, 10_000)).await;
    program.send(&said(DATA, END_STREAM, 1, "")).await;
    program.goes_on(3).await;
    program.hears_nothing_for(Duration::from_secs(2)).await;
    program.goes_on(5).await;
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_an_answered_request_is_waited_for_a_second() {
    let mut program = Program::new().await;
    program.asks(&post(1, &[])).await.answers(whole(413, ""));
    let begun = tokio::time::Instant::now();
    program.hears([head(1, 413, &[], true)]).await;
    program.send(&bytes(1, 10_000)).await;
    program.hears([Heard::Reset(1, Reason::NO_ERROR)]).await;
    let waited = begun.elapsed();
    assert!((1000..1100).contains(&waited.as_millis()), "{waited:?}");
    program.send(&bytes(1, 10_000)).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn little_is_taken_of_an_answered_request() {
    let mut program = Program::new().await;
    program.asks(&post(1, &[])).await.answers(whole(413, ""));
    program.hears([head(1, 413, &[], true)]).await;
    program.send(&bytes(1, 32 * 1024)).await;
    program.hears_nothing().await;
    let begun = tokio::time::Instant::now();
    program.send(&bytes(1, 1)).await;
    program.hears([Heard::Reset(1, Reason::NO_ERROR)]).await;
    assert!(begun.elapsed() < Duration::from_millis(10));
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_is_told_to_stop_after_the_whole_answer() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    program.asks(&post(1, &[])).await.answers(whole(413, "too much"));
    program.hears([head(1, 413, &[("content-length", "8")], false)]).await;
    program.send(&bytes(1, 100_000)).await;
    program.hears_nothing().await;
    program.send(&room(1, 3)).await;
    program.hears([data(1, "too", false)]).await;
    program.send(&room(1, 5)).await;
    program.hears([data(1, " much", true), Heard::Reset(1, Reason::NO_ERROR)]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_may_be_read_after_the_answer() {
    let mut program = Program::new().await;
    let Asked { request, answer } = program.asks(&post(1, &[])).await;
    let _ = answer.send(whole(200, "early"));
    program.hears([head(1, 200, &[("content-length", "5")], false), data(1, "early", true)]).await;
    let reading = tokio::spawn(request.into_body().collect());
    program.hears_nothing_for(Duration::from_secs(5)).await;
    program.send(&bytes(1, 100_000)).await;
    program.send(&said(DATA, END_STREAM, 1, "")).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 100_000);
    program.goes_on(3).await;
}

const EXPECT: &[(&str, &str)] = &[("expect", "100-continue")];

#[tokio::test(start_paused = true)]
async fn a_program_that_waits_is_told_that_its_body_is_wanted() {
    let mut program = Program::new().await;
    let Asked { request, answer } = program.asks(&post(1, EXPECT)).await;
    program.hears_nothing().await;
    let reading = tokio::spawn(request.into_body().collect());
    program.hears([head(1, 100, &[], false)]).await;
    program.hears_nothing().await;
    program.send(&said(DATA, 0, 1, "some")).await;
    program.send(&said(DATA, END_STREAM, 1, "body")).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes(), "somebody");
    assert!(answer.send(whole(200, "")).is_ok());
    program.hears([head(1, 200, &[], true)]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_waits_may_be_answered_at_once() {
    let mut program = Program::new().await;
    let Asked { request, answer } = program.asks(&post(1, EXPECT)).await;
    let _ = answer.send(whole(417, ""));
    program.hears([head(1, 417, &[], true)]).await;
    let reading = tokio::spawn(request.into_body().collect());
    program.hears_nothing().await;
    program.send(&said(DATA, END_STREAM, 1, "body")).await;
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes(), "body");
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_reads_on_one_stream_holds_up_no_other() {
    let mut program = Program::new().await;
    let unread = program.asks(&post(1, &[])).await;
    program.send(&bytes(1, 600 << 10)).await;
    let asked = program.asks(&post(3, &[])).await;
    let reading = tokio::spawn(asked.request.into_body().collect());
    let (mut left, mut room) = (2_000_000, WINDOW - (600 << 10));
    while left > 0 {
        let size = left.min(USUAL).min(room);
        if size == 0 {
            // Of the stream itself it is told as well.
            if let Heard::Room(0, more) = program.hear().await {
                room += more as usize;
            }
            continue;
        }
        (left, room) = (left - size, room - size);
        program.send(&said(DATA, if left == 0 { END_STREAM } else { 0 }, 3, vec![b'a'; size])).await;
    }
    assert_eq!(in_time(reading).await.unwrap().unwrap().to_bytes().len(), 2_000_000);
    drop(unread);
}
