//! Floods of HTTP/2 frames.

use fairmesh_model::Protocol;
use rustix::process::Signal;
use tokio::{
    io::{AsyncWriteExt as _, split},
    net::TcpStream,
    task::JoinHandle,
};

use super::{memory, others_are_served};
use crate::harness::{
    Proxy, RawServer, Spec, World, alone, beside_others,
    h2::{
        self, ACK, CALM, CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM,
        SETTINGS, UNKNOWN, WINDOW_UPDATE, frame,
    },
    read_head, until,
};

/// Most memory that a flood may occupy, in bytes.
const LITTLE: u64 = 16 << 20;
/// Number of frames in a flood.
const MANY: u32 = 20_000;

/// Sends all frames, or as many as the proxy accepts.
fn flood(
    stream: TcpStream,
    frames: impl Iterator<Item = Vec<u8>> + Send + 'static,
) -> (tokio::io::ReadHalf<TcpStream>, JoinHandle<()>) {
    let (reader, mut writer) = split(stream);
    let frames: Vec<u8> = frames.flatten().collect();
    let sending = tokio::spawn(async move {
        let _ = writer.write_all(&frames).await;
        // Keeps the connection open, so that only the proxy can end it.
        std::future::pending::<()>().await;
    });
    (reader, sending)
}

fn reset(stream: u32) -> Vec<u8> {
    let cancel = 8_u32.to_be_bytes();
    let request = frame(HEADERS, END_HEADERS | END_STREAM, stream, &h2::get("one.shop"));
    [request, frame(RST_STREAM, 0, stream, &cancel)].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_stream_resets_get_enhance_your_calm() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    let stream = h2::connect(&proxy.for_one, &[]).await;
    let (mut reader, sending) = flood(stream, (0..MANY).map(|n| reset(2 * n + 1)));
    let goodbye = h2::goodbye(&mut reader).await;
    assert!(matches!(goodbye, None | Some(CALM)), "{goodbye:?}");
    sending.abort();
    proxy.counts("connections_open", 0.0).await;
    proxy.reaches("connections_failed_total", 1.0).await;
    assert!(
        proxy.metric("attempts_total").await < f64::from(MANY) / 4.0,
        "it was stopped before much was asked"
    );
    others_are_served(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_stream_resets_end_connection() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let slow = std::time::Duration::from_secs(60);
    let _one = Spec { work: slow, ..Spec::new("shop/one", "one", Protocol::Http2) }.here(&world).await;
    let proxy = Proxy::start(&world).await;
    let (mut reader, mut writer) = split(h2::connect(&proxy.for_one, &[]).await);
    let ended = tokio::spawn(async move { h2::goodbye(&mut reader).await });
    let mut number = 0;
    // Each stream is in flight before its reset, so that no reset hits a stream that the proxy has not accepted yet.
    while !ended.is_finished() && number < MANY {
        let tries = proxy.metric("attempts_total").await;
        let burst: Vec<u8> = (0..32)
            .flat_map(|n| {
                frame(HEADERS, END_HEADERS | END_STREAM, 2 * (number + n) + 1, &h2::get("one.shop"))
            })
            .collect();
        if writer.write_all(&burst).await.is_err() {
            break;
        }
        until("all are under way, or it was cut off", async || {
            ended.is_finished() || proxy.metric("attempts_total").await >= tries + 32.0
        })
        .await;
        let taken_back: Vec<u8> =
            (0..32).flat_map(|n| frame(RST_STREAM, 0, 2 * (number + n) + 1, &8_u32.to_be_bytes())).collect();
        let _ = writer.write_all(&taken_back).await;
        number += 32;
    }
    assert!(ended.await.is_ok());
    assert!(number < 2_000, "it could take back {number} requests");
    proxy.counts("rapid_reset_connections_total", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_header_blocks_end_connection() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    let before = memory(&proxy.process);
    // Header fields that are never indexed, of one kilobyte each.
    let field = [&[0x10, 1, b'x', 0x7f, 0x81, 0x07][..], &[b'y'; 1024]].concat();
    let beginning = frame(HEADERS, END_STREAM, 1, &h2::get("one.shop"));
    let goes_on = (0..MANY).map(move |_| frame(CONTINUATION, 0, 1, &field));
    let stream = h2::connect(&proxy.for_one, &[]).await;
    let (mut reader, sending) = flood(stream, std::iter::once(beginning).chain(goes_on));
    let goodbye = h2::goodbye(&mut reader).await;
    assert!(matches!(goodbye, None | Some(1..)), "{goodbye:?}");
    sending.abort();
    assert!(memory(&proxy.process).saturating_sub(before) < LITTLE);
    proxy.counts("connections_open", 0.0).await;
    proxy.reaches("connections_failed_total", 1.0).await;
    others_are_served(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_and_settings_floods_use_bounded_memory_and_end_connection() {
    // On a machine busy with other tests, such a connection ended for another reason before the proxy closed it for its
    // frames.
    let _machine = alone().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    others_are_served(&proxy).await;
    let before = memory(&proxy.process);
    for (n, (kind, payload)) in [(PING, &[7; 8][..]), (SETTINGS, &[0, 3, 0, 0, 0, 9])].into_iter().enumerate()
    {
        // At first the client does not read the responses.
        let stream = h2::connect(&proxy.for_one, &[]).await;
        let payload = payload.to_vec();
        let (mut reader, sending) = flood(stream, (0..10 * MANY).map(move |_| frame(kind, 0, 0, &payload)));
        others_are_served(&proxy).await;
        let kept = memory(&proxy.process).saturating_sub(before);
        assert!(kept < LITTLE, "{kept} bytes are kept of a flood of kind {kind}");
        let mut answered = 0;
        while let Some(came) = h2::read(&mut reader).await {
            answered += u32::from(came.kind == kind && came.flags & ACK != 0);
        }
        sending.abort();
        assert!(answered < MANY, "{answered} of a flood were answered");
        proxy.counts("frame_flood_connections_total", n as f64 + 1.0).await;
    }
    for (kind, stream, payload) in
        [(WINDOW_UPDATE, 0, &[0, 0, 0, 1][..]), (PRIORITY, 1, &[0, 0, 0, 0, 1]), (UNKNOWN, 1, &[0; 4])]
    {
        let before = proxy.metric("frame_flood_connections_total").await;
        let stream_of = h2::connect(&proxy.for_one, &[]).await;
        let payload = payload.to_vec();
        let (mut reader, sending) =
            flood(stream_of, (0..MANY).map(move |_| frame(kind, 0, stream, &payload)));
        while h2::read(&mut reader).await.is_some() {}
        sending.abort();
        proxy.counts("frame_flood_connections_total", before + 1.0).await;
    }
    proxy.counts("connections_open", 0.0).await;
    others_are_served(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frame_flood_is_cut_off_while_proxy_drains() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let mut proxy = Proxy::with(&world, "--cores 1 --drain-deadline 300s").await;
    let mut stream = h2::connect(&proxy.for_one, &[]).await;
    // The request in flight keeps the connection open.
    stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &h2::get("one.shop"))).await.unwrap();
    let mut served = server.accept().await;
    read_head(&mut served).await;
    proxy.process.signal(Signal::TERM);
    while h2::read(&mut stream).await.expect("it goes on until all is answered").kind != h2::GOAWAY {}
    let (mut reader, sending) = flood(stream, (0..MANY).map(|_| frame(PING, 0, 0, &[7; 8])));
    while h2::read(&mut reader).await.is_some() {}
    sending.abort();
    // No other request was in flight, so the proxy need not wait for the deadline.
    assert!(proxy.process.end().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hpack_header_bomb_is_refused() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    others_are_served(&proxy).await;
    let before = memory(&proxy.process);
    let mut stream = h2::connect(&proxy.for_one, &[]).await;
    // A field of 3 KB that enters the dynamic table, then one byte for each repetition.
    let field = [&[0x40, 1, b'x', 0x7f, 0x81, 0x16][..], &[b'y'; 2944]].concat();
    for number in 0..64_u32 {
        let mut head = h2::get("one.shop");
        if number == 0 {
            head.extend_from_slice(&field);
        }
        head.extend(std::iter::repeat_n(0xbe, 10_000));
        let sent = stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &head)).await;
        if sent.is_err() {
            break;
        }
    }
    let mut refused = false;
    let reading = async {
        while let Some(came) = h2::read(&mut stream).await {
            // Refused with 431, RST_STREAM or GOAWAY.
            refused |= matches!(came.kind, HEADERS | RST_STREAM | h2::GOAWAY);
        }
    };
    // The connection may also stay open for requests that can be served.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), reading).await;
    assert!(refused);
    let kept = memory(&proxy.process).saturating_sub(before);
    assert!(kept < LITTLE, "{kept} bytes are kept of heads of 30 MB each");
    assert_eq!(proxy.metric("attempts_total").await, 1.0, "no server was asked");
    drop(stream);
    others_are_served(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_are_not_buffered() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    let before = memory(&proxy.process);
    // A window of zero bytes for every stream.
    let mut stream = h2::connect(&proxy.for_one, &[0, 4, 0, 0, 0, 0]).await;
    let mut pouring = Vec::new();
    for number in 0..64 {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &h2::get("one.shop"));
        stream.write_all(&request).await.unwrap();
        let mut served = server.accept().await;
        read_head(&mut served).await;
        pouring.push(tokio::spawn(async move {
            let _ = served.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\n\r\n").await;
            let _ = served.write_all(&[b'x'; 1 << 20]).await;
            served
        }));
    }
    let kept = memory(&proxy.process).saturating_sub(before);
    assert!(kept < LITTLE, "{kept} bytes are kept of 64 MB that fit no window");
    // The program is still connected, but servers do not wait for it.
    proxy.counts("stalled_responses_total", 64.0).await;
    proxy.counts("upstream_connections_open", 0.0).await;
    proxy.counts("connections_open", 1.0).await;
    drop(stream);
    proxy.counts("connections_open", 0.0).await;
    pouring.into_iter().for_each(|task| task.abort());
}
