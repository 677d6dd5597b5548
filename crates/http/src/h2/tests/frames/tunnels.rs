//! CONNECT.

use std::io::ErrorKind;

use super::{
    super::super::{Duplex, Switch},
    *,
};

fn connect(stream: u32) -> Vec<u8> {
    let fields = [(":method", "CONNECT"), (":authority", "one.shop:443")];
    said(HEADERS, END_HEADERS, stream, block(&fields))
}

async fn asked(program: &mut Program) -> (Switch, Asked) {
    let mut asked = program.asks(&connect(1)).await;
    assert_eq!(asked.request.uri(), "one.shop:443");
    assert!(http_body::Body::is_end_stream(asked.request.body()));
    (asked.request.extensions_mut().remove::<Switch>().unwrap(), asked)
}

async fn tunnel() -> (Program, Duplex) {
    let mut program = Program::new().await;
    let (switch, asked) = asked(&mut program).await;
    let begun = tokio::spawn(switch.begun());
    program.hears_nothing().await;
    asked.answers(whole(200, ""));
    program.hears([head(1, 200, &[], false)]).await;
    (program, in_time(begun).await.unwrap().unwrap())
}

async fn read(tunnel: &mut Duplex) -> Bytes {
    let mut read = BytesMut::new();
    in_time(tunnel.read_buf(&mut read)).await.unwrap();
    read.freeze()
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_carries_bytes_both_ways_until_both_sides_end() {
    let (mut program, mut tunnel) = tunnel().await;
    program.send(&said(DATA, 0, 1, "ping")).await;
    assert_eq!(read(&mut tunnel).await, "ping");
    in_time(tunnel.write_all(b"pong")).await.unwrap();
    in_time(tunnel.flush()).await.unwrap();
    program.hears([data(1, "pong", false)]).await;

    program.send(&said(DATA, END_STREAM, 1, "last")).await;
    assert_eq!(read(&mut tunnel).await, "last");
    assert_eq!(read(&mut tunnel).await, "");
    in_time(tunnel.write_all(b"late")).await.unwrap();
    in_time(tunnel.shutdown()).await.unwrap();
    program.hears([data(1, "late", false), data(1, "", true)]).await;
    drop(tunnel);
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_goes_on_after_our_side_has_ended() {
    let (mut program, mut tunnel) = tunnel().await;
    in_time(tunnel.shutdown()).await.unwrap();
    program.hears([data(1, "", true)]).await;
    program.send(&said(DATA, 0, 1, "still here")).await;
    assert_eq!(read(&mut tunnel).await, "still here");
    program.send(&said(DATA, END_STREAM, 1, "")).await;
    assert_eq!(read(&mut tunnel).await, "");
    drop(tunnel);
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_takes_the_room_of_its_stream_and_no_more() {
    let (mut program, mut tunnel) = tunnel().await;
    let writing = tokio::spawn(async move {
        tunnel.write_all(&vec![b'x'; 200_000]).await.unwrap();
        tunnel.flush().await.unwrap();
        tunnel
    });
    assert!(!program.hears_bytes(1, 65_535).await);
    program.hears_nothing().await;
    program.send(&[room(0, 200_000), room(1, 7)].concat()).await;
    assert!(!program.hears_bytes(1, 7).await);
    program.hears_nothing().await;
    program.send(&room(1, 200_000)).await;
    assert!(!program.hears_bytes(1, 200_000 - 65_542).await);
    drop(in_time(writing).await.unwrap());
    program.hears([Heard::Reset(1, Reason::CANCEL)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_ends_with_less_room_than_none() {
    let (mut program, mut tunnel) = tunnel().await;
    in_time(tunnel.write_all(b"some")).await.unwrap();
    program.hears([data(1, "some", false)]).await;
    program.send(&set(&[(INITIAL_WINDOW_SIZE, 0)])).await;
    program.hears([Heard::Agreed]).await;
    in_time(tunnel.shutdown()).await.unwrap();
    program.hears([data(1, "", true)]).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_uses_a_tunnel_learns_that_it_was_reset() {
    let (mut program, mut tunnel) = tunnel().await;
    program.send(&said(DATA, 0, 1, "lost")).await;
    program.send(&reset(1, Reason::CANCEL)).await;
    program.hears_nothing().await;
    let read = in_time(tunnel.read(&mut [0; 10])).await.unwrap_err();
    let written = in_time(tunnel.write_all(b"in vain")).await.unwrap_err();
    assert_eq!([read.kind(), written.kind()], [ErrorKind::ConnectionReset; 2]);
    drop(tunnel);
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_is_dropped_is_reset() {
    let (mut program, duplex) = tunnel().await;
    drop(duplex);
    program.hears([Heard::Reset(1, Reason::CANCEL)]).await;
    program.send(&said(DATA, 0, 1, "late")).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_ends_with_its_connection() {
    let (program, mut tunnel) = tunnel().await;
    let reading = tokio::spawn(async move { tunnel.read(&mut [0; 10]).await });
    program.ended().await.unwrap();
    assert_eq!(in_time(reading).await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_is_denied_is_answered_as_any_other_request() {
    let mut program = Program::new().await;
    let (switch, asked) = asked(&mut program).await;
    let begun = tokio::spawn(switch.begun());
    asked.answers(whole(403, "no"));
    program.hears([head(1, 403, &[("content-length", "2")], false), data(1, "no", true)]).await;
    assert!(in_time(begun).await.unwrap().is_none());
    program.send(&said(DATA, END_STREAM, 1, "")).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_nobody_wants_is_answered_as_any_other_request() {
    let mut program = Program::new().await;
    let (switch, asked) = asked(&mut program).await;
    drop(switch);
    asked.answers(whole(200, ""));
    program.hears([head(1, 200, &[], true), Heard::Reset(1, Reason::NO_ERROR)]).await;
    program.goes_on(3).await;
}
