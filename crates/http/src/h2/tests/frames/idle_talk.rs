//! Frames that ask for nothing.

use super::{
    super::super::{Violation, frame::PRIORITY},
    *,
};

/// Of which the settings, in the beginning, are one.
const MOST: usize = 10_000;

fn pings(count: usize) -> Vec<u8> {
    said(PING, 0, 0, b"are you?").repeat(count)
}

async fn hears_pongs(program: &mut Program, count: usize) {
    for _ in 0..count {
        program.hears([Heard::Pong(Bytes::from_static(b"are you?"))]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ping_is_answered_with_what_it_carries() {
    let mut program = Program::new().await;
    program.send(&said(PING, 0xfe, 0, [1, 2, 3, 4, 5, 6, 7, 8])).await;
    program.hears([Heard::Pong(vec![1, 2, 3, 4, 5, 6, 7, 8].into())]).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_nothing_but_ask_whether_we_are_there_is_cut_off() {
    let mut program = Program::new().await;
    program.send(&pings(MOST - 1)).await;
    hears_pongs(&mut program, MOST - 1).await;
    program.send(&pings(1)).await;
    program.hears([Heard::Goodbye(0, Reason::ENHANCE_YOUR_CALM), Heard::End]).await;
    assert!(matches!(program.ended().await, Err(End::Violation(Violation::FLOOD))));
}

#[tokio::test(start_paused = true)]
async fn a_program_may_ask_whether_we_are_there_between_what_it_sends() {
    let mut program = Program::new().await;
    let _asked = program.asks(&post(1, &[])).await;
    for _ in 0..MOST / 5 {
        program.send(&[said(DATA, 0, 1, "a"), pings(10)].concat()).await;
        hears_pongs(&mut program, 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn frames_without_end_are_too_many_whatever_their_kind() {
    for frame in [
        set(&[]),
        said(SETTINGS, ACK, 0, []),
        said(DATA, 0, 1, ""),
        room(1, 1),
        said(PRIORITY, 0, 1, [0, 0, 0, 3, 1]),
        said(0xfa, 0, 0, []),
    ] {
        let mut program = Program::new().await;
        let asked = program.asks(&post(1, &[])).await;
        program.send(&frame.repeat(MOST + 100)).await;
        let mut heard = program.hear().await;
        while heard == Heard::Agreed {
            heard = program.hear().await;
        }
        assert_eq!(heard, Heard::Goodbye(1, Reason::ENHANCE_YOUR_CALM), "{frame:?}");
        assert!(asked.answer.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_not_read_its_answers_is_not_read_either() {
    let mut program = Program::new().await;
    let _asked = program.asks(&post(1, &[])).await;
    // Far more than both directions of the pipe hold.
    let many = [said(DATA, 0, 1, "a"), pings(10)].concat().repeat(20_000);
    let sent = timeout(Duration::from_secs(1), program.wire.io.write_all(&many)).await;
    assert!(sent.is_err(), "all of it was read");
    hears_pongs(&mut program, WINDOW / 17).await;
}
