//! CONNECT tunnels.

use std::io::ErrorKind;

use super::{
    super::super::{PendingTunnel, TunnelStream},
    *,
};

fn connect(stream: u32) -> Vec<u8> {
    let fields = [(":method", "CONNECT"), (":authority", "one.shop:443")];
    raw_frame(HEADERS, END_HEADERS, stream, header_block(&fields))
}

async fn dispatched(client: &mut Client) -> (PendingTunnel, Dispatched) {
    let mut dispatched = client.request(&connect(1)).await;
    assert_eq!(dispatched.request.uri(), "one.shop:443");
    assert!(http_body::Body::is_end_stream(dispatched.request.body()));
    (dispatched.request.extensions_mut().remove::<PendingTunnel>().unwrap(), dispatched)
}

async fn tunnel() -> (Client, TunnelStream) {
    let mut client = Client::new().await;
    let (switch, dispatched) = dispatched(&mut client).await;
    let begun = tokio::spawn(switch.begun());
    client.expect_nothing().await;
    dispatched.respond(whole(200, ""));
    client.expect([head(1, 200, &[], false)]).await;
    (client, in_time(begun).await.unwrap().unwrap())
}

async fn read(tunnel: &mut TunnelStream) -> Bytes {
    let mut read = BytesMut::new();
    in_time(tunnel.read_buf(&mut read)).await.unwrap();
    read.freeze()
}

#[tokio::test(start_paused = true)]
async fn http2_tunnel_carries_bytes_both_ways_until_both_sides_end() {
    let (mut client, mut tunnel) = tunnel().await;
    client.send(&raw_frame(DATA, 0, 1, "ping")).await;
    assert_eq!(read(&mut tunnel).await, "ping");
    in_time(tunnel.write_all(b"pong")).await.unwrap();
    in_time(tunnel.flush()).await.unwrap();
    client.expect([data(1, "pong", false)]).await;

    client.send(&raw_frame(DATA, END_STREAM, 1, "last")).await;
    assert_eq!(read(&mut tunnel).await, "last");
    assert_eq!(read(&mut tunnel).await, "");
    in_time(tunnel.write_all(b"late")).await.unwrap();
    in_time(tunnel.shutdown()).await.unwrap();
    client.expect([data(1, "late", false), data(1, "", true)]).await;
    drop(tunnel);
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn http2_tunnel_may_be_half_closed() {
    let (mut client, mut tunnel) = tunnel().await;
    in_time(tunnel.shutdown()).await.unwrap();
    client.expect([data(1, "", true)]).await;
    client.send(&raw_frame(DATA, 0, 1, "still here")).await;
    assert_eq!(read(&mut tunnel).await, "still here");
    client.send(&raw_frame(DATA, END_STREAM, 1, "")).await;
    assert_eq!(read(&mut tunnel).await, "");
    drop(tunnel);
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn http2_tunnel_obeys_flow_control() {
    let (mut client, mut tunnel) = tunnel().await;
    let writing = tokio::spawn(async move {
        tunnel.write_all(&vec![b'x'; 200_000]).await.unwrap();
        tunnel.flush().await.unwrap();
        tunnel
    });
    assert!(!client.expect_bytes(1, 65_535).await);
    client.expect_nothing().await;
    client.send(&[window_update(0, 200_000), window_update(1, 7)].concat()).await;
    assert!(!client.expect_bytes(1, 7).await);
    client.expect_nothing().await;
    client.send(&window_update(1, 200_000)).await;
    assert!(!client.expect_bytes(1, 200_000 - 65_542).await);
    drop(in_time(writing).await.unwrap());
    client.expect([Event::Reset(1, Reason::CANCEL)]).await;
}

#[tokio::test(start_paused = true)]
async fn tunnel_can_end_despite_negative_send_window() {
    let (mut client, mut tunnel) = tunnel().await;
    in_time(tunnel.write_all(b"some")).await.unwrap();
    client.expect([data(1, "some", false)]).await;
    client.send(&settings_frame(&[(INITIAL_WINDOW_SIZE, 0)])).await;
    client.expect([Event::SettingsAck]).await;
    in_time(tunnel.shutdown()).await.unwrap();
    client.expect([data(1, "", true)]).await;
}

#[tokio::test(start_paused = true)]
async fn stream_reset_fails_reads_and_writes_of_http2_tunnel() {
    let (mut client, mut tunnel) = tunnel().await;
    client.send(&raw_frame(DATA, 0, 1, "lost")).await;
    client.send(&rst_stream(1, Reason::CANCEL)).await;
    client.expect_nothing().await;
    let read = in_time(tunnel.read(&mut [0; 10])).await.unwrap_err();
    let written = in_time(tunnel.write_all(b"in vain")).await.unwrap_err();
    assert_eq!([read.kind(), written.kind()], [ErrorKind::ConnectionReset; 2]);
    drop(tunnel);
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn dropping_http2_tunnel_resets_its_stream() {
    let (mut client, duplex) = tunnel().await;
    drop(duplex);
    client.expect([Event::Reset(1, Reason::CANCEL)]).await;
    client.send(&raw_frame(DATA, 0, 1, "late")).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn http2_tunnel_fails_when_its_connection_ends() {
    let (client, mut tunnel) = tunnel().await;
    let reading = tokio::spawn(async move { tunnel.read(&mut [0; 10]).await });
    client.ended().await.unwrap();
    assert_eq!(in_time(reading).await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn refused_connect_gets_ordinary_response() {
    let mut client = Client::new().await;
    let (switch, dispatched) = dispatched(&mut client).await;
    let begun = tokio::spawn(switch.begun());
    dispatched.respond(whole(403, "no"));
    client.expect([head(1, 403, &[("content-length", "2")], false), data(1, "no", true)]).await;
    assert!(in_time(begun).await.unwrap().is_none());
    client.send(&raw_frame(DATA, END_STREAM, 1, "")).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn connect_with_dropped_tunnel_gets_ordinary_response() {
    let mut client = Client::new().await;
    let (switch, dispatched) = dispatched(&mut client).await;
    drop(switch);
    dispatched.respond(whole(200, ""));
    client.expect([head(1, 200, &[], true), Event::Reset(1, Reason::NO_ERROR)]).await;
    client.expect_alive(3).await;
}
