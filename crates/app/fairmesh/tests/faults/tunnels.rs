//! Connections through a proxy that carry bytes instead of messages: WebSocket, CONNECT, TCP.

use std::io::ErrorKind;

use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::harness::{
    PATIENCE, Proxy, RawServer, World, beside_others, free_port,
    h2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, frame},
    read_head, read_to_end, say, until,
};

const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhello";

fn websocket(host: &str) -> String {
    format!(
        "GET /chat HTTP/1.1\r\nhost: {host}\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGVhcG90IG9mIGFsaWNl\r\nkeep-alive: 5\r\n\r\n"
    )
}

/// Sends data in both directions, then ends each direction in turn.
async fn talk(program: &mut TcpStream, server: &mut TcpStream) {
    program.write_all(b"ping").await.unwrap();
    let mut said = [0; 4];
    timeout(PATIENCE, server.read_exact(&mut said)).await.unwrap().unwrap();
    assert_eq!(&said, b"ping");
    program.shutdown().await.unwrap();
    assert!(read_to_end(server).await.is_empty(), "the program's end is the server's");
    server.write_all(b"pong").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(read_to_end(program).await, b"pong");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_is_forwarded_in_both_directions() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    let mut program = say(&proxy.by_host, websocket("one.shop")).await;
    let mut served = server.accept().await;
    let asked = read_head(&mut served).await;
    for passed_on in ["\r\nconnection: upgrade\r\n", "\r\nupgrade: websocket\r\n", "\r\nsec-websocket-key: "]
    {
        assert_eq!(asked.matches(passed_on).count(), 1, "{asked}");
    }
    assert!(!asked.contains("keep-alive"), "{asked}");
    served.write_all(SWITCH.as_bytes()).await.unwrap();
    let answer = read_head(&mut program).await;
    assert!(answer.starts_with("http/1.1 101 ") && answer.contains("\r\nupgrade: websocket\r\n"), "{answer}");
    let mut hello = [0; 5];
    program.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello", "what came with the answer is not lost");
    assert_eq!((proxy.metric("tunnels_open").await, proxy.metric("connections_open").await), (1.0, 1.0));
    talk(&mut program, &mut served).await;
    proxy.counts("tunnels_open", 0.0).await;
    proxy.counts("connections_open", 0.0).await;
    proxy.counts("tunnels_total", 1.0).await;
    proxy.counts("tunnel_sent_bytes_total", 4.0).await;
    proxy.counts("tunnel_received_bytes_total", 9.0).await;
    until("it is logged", async || proxy.process.log().contains(r#""path":"/chat","status":101"#)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_upgrade_gets_ordinary_response_of_server() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    let mut program = say(&proxy.for_one, websocket("one.shop")).await;
    let mut served = server.accept().await;
    read_head(&mut served).await;
    served
        .write_all(b"HTTP/1.1 426 Upgrade Required\r\nupgrade: other\r\ncontent-length: 0\r\n\r\n")
        .await
        .unwrap();
    assert!(read_head(&mut program).await.starts_with("http/1.1 426 "));
    // The connections of both sides stay open. A POST, which is not retried.
    let plain = b"POST /plain HTTP/1.1\r\nhost: one.shop\r\ncontent-length: 0\r\n\r\n";
    program.write_all(plain).await.unwrap();
    assert!(read_head(&mut served).await.starts_with("post /plain "));
    // A server that switches protocols unasked: its next bytes must not be taken for the response to a request.
    served.write_all(SWITCH.as_bytes()).await.unwrap();
    let answer = read_head(&mut program).await;
    assert!(answer.starts_with("http/1.1 502 ") && answer.contains("x-fairmesh-fault: protocol"), "{answer}");
    assert!(read_to_end(&mut served).await.is_empty());
    assert_eq!(proxy.metric("tunnels_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_tunnels_end_and_active_ones_survive_drain() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let mut proxy = Proxy::with(&world, "--tunnel-idle-timeout 2s").await;
    let open = async || {
        let mut program = say(&proxy.for_one, websocket("one.shop")).await;
        let mut served = server.accept().await;
        read_head(&mut served).await;
        served.write_all(SWITCH.as_bytes()).await.unwrap();
        read_head(&mut program).await;
        (program, served)
    };
    let (mut program, mut served) = open().await;
    assert_eq!(read_to_end(&mut program).await, b"hello");
    assert!(read_to_end(&mut served).await.is_empty());
    proxy.counts("tunnel_idle_timeouts_total", 1.0).await;

    let (mut program, mut served) = open().await;
    proxy.process.signal(Signal::TERM);
    let mut said = [0; 4];
    until("no new connection is accepted", async || {
        // The tunnel is in use meanwhile.
        program.write_all(b"ping").await.unwrap();
        timeout(PATIENCE, served.read_exact(&mut said)).await.unwrap().unwrap();
        TcpStream::connect(&proxy.for_one).await.is_err()
    })
    .await;
    // The tunnel is in use for longer than the idle timeout.
    let begun = tokio::time::Instant::now();
    while begun.elapsed().as_millis() < 1500 {
        served.write_all(b"more").await.unwrap();
        program.write_all(b"ping").await.unwrap();
        timeout(PATIENCE, served.read_exact(&mut said)).await.unwrap().unwrap();
    }
    read_to_end(&mut program).await;
    assert!(read_to_end(&mut served).await.is_empty());
    assert!(proxy.process.end().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_tunnel_reaches_only_services_of_mesh() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let [by_host, for_one] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let listen = format!("--listen {by_host}+connect --listen {for_one}=shop/one+connect");
    let proxy = Proxy::with(&world, &listen).await;
    for to in [&by_host, &for_one] {
        let mut program = say(to, "CONNECT one.shop:443 HTTP/1.1\r\nhost: one.shop:443\r\n\r\n").await;
        let mut served = server.accept_tunnel().await;
        let answer = read_head(&mut program).await;
        assert!(answer.starts_with("http/1.1 200 ") && !answer.contains("content-length"), "{answer}");
        talk(&mut program, &mut served).await;
    }
    for named in ["example.com:443", "127.0.0.1:22", "[::1]:22", "localhost:80"] {
        let asked = format!("CONNECT {named} HTTP/1.1\r\nhost: one.shop\r\n\r\n");
        let mut program = say(&by_host, asked).await;
        let answer = read_head(&mut program).await;
        assert!(answer.starts_with("http/1.1 403 "), "{named}: {answer}");
    }
    // A client that sends data without waiting for the response, then closes its sending side.
    let mut program = say(&by_host, "CONNECT one.shop:443 HTTP/1.1\r\nhost: one.shop\r\n\r\nping").await;
    program.shutdown().await.unwrap();
    let mut served = server.accept_tunnel().await;
    assert_eq!(read_to_end(&mut served).await, b"ping");
    served.write_all(b"pong").await.unwrap();
    served.shutdown().await.unwrap();
    read_head(&mut program).await;
    assert_eq!(read_to_end(&mut program).await, b"pong");
    proxy.counts("tunnels_total", 3.0).await;
    proxy.counts("unsupported_requests_total", 4.0).await;
    let metrics = proxy.page("/metrics").await;
    assert!(!metrics.contains("com/example"), "undeclared names are no labels: {metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_connect_tunnel_shares_connection_with_other_requests() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let by_host = format!("127.0.0.1:{}", free_port());
    let proxy = Proxy::with(&world, &format!("--listen {by_host}+connect")).await;
    let mut program = h2::connect(&by_host, &[]).await;
    let asked = [&b"\x02\x07CONNECT\x01\x0c"[..], b"one.shop:443"].concat();
    for stream in [1, 3] {
        program.write_all(&frame(HEADERS, END_HEADERS, stream, &asked)).await.unwrap();
        let mut served = server.accept_tunnel().await;
        program.write_all(&frame(DATA, END_STREAM, stream, b"ping")).await.unwrap();
        assert_eq!(read_to_end(&mut served).await, b"ping");
        served.write_all(b"pong").await.unwrap();
        drop(served);
        let (mut said, mut ended, mut status) = (Vec::new(), false, Vec::new());
        while !ended {
            let came = h2::read(&mut program).await.expect("the connection goes on");
            ended = matches!(came.kind, DATA | HEADERS) && came.flags & END_STREAM != 0;
            match came.kind {
                HEADERS => status = came.payload,
                DATA => said.extend(came.payload),
                _ => {}
            }
        }
        // 0x88 is status 200 in the static table.
        assert_eq!((status.first(), &said[..]), (Some(&0x88), &b"pong"[..]));
    }
    proxy.counts("tunnels_open", 0.0).await;
    assert_eq!((proxy.metric("tunnels_total").await, proxy.metric("connections_open").await), (2.0, 1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_connection_uses_reachable_server_or_is_reset() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/db", "db-0").await;
    let gone = RawServer::start(&world, "shop/db", "db-1").await.close();
    let lost = RawServer::start(&world, "shop/lost", "lost").await.close();
    let [db, nowhere] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let listen = format!("--listen tcp:{db}=shop/db --listen tcp:{nowhere}=shop/lost");
    let proxy = Proxy::with(&world, &listen).await;
    for _ in 0..8 {
        let (mut program, mut served) = tokio::join!(say(&db, ""), server.accept_tunnel());
        talk(&mut program, &mut served).await;
    }
    proxy.counts("tunnels_total", 8.0).await;
    let mut program = say(&nowhere, "").await;
    let ended = timeout(PATIENCE, program.read(&mut [0; 1])).await.unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset, "an end would look like an answer");
    proxy.counts("tcp_connections_refused_total", 1.0).await;
    assert!(proxy.page("/metrics").await.contains("faults_total{service=\"shop/lost\"} 1"));
    drop((gone, lost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_protocol_carries_client_address_both_ways() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/db", "db-0").await;
    let [tcp, http] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let listen =
        format!("--listen tcp:{tcp}=shop/db+accept-proxy+send-proxy --listen {http}=shop/db+accept-proxy");
    let proxy = Proxy::with(&world, &listen).await;

    let block = [192, 0, 2, 1, 198, 51, 100, 2, 0, 5, 0, 6];
    let head = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &block, b"hello"].concat();
    let (mut program, mut served) = (say(&tcp, head).await, server.accept().await);
    program.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut served).await, b"PROXY TCP4 192.0.2.1 198.51.100.2 5 6\r\nhello");

    let asked =
        "PROXY TCP6 2001:db8::1 ::1 7 80\r\nGET / HTTP/1.1\r\nhost: db.shop\r\nconnection: close\r\n\r\n";
    let (mut program, mut served) = (say(&http, asked).await, server.accept().await);
    read_head(&mut served).await;
    served.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    assert!(read_to_end(&mut program).await.starts_with(b"HTTP/1.1 204"));
    until("who asked is in the log", async || proxy.process.log().contains(r#""caller":"[2001:db8::1]:7""#))
        .await;

    for (to, wrong) in
        [(&tcp, "hello, is this a database?"), (&http, "GET / HTTP/1.1\r\nhost: db.shop\r\n\r\n")]
    {
        let mut program = say(to, wrong).await;
        assert!(read_to_end(&mut program).await.is_empty());
    }
    // The proxy gives up on a client whose PROXY header stays incomplete.
    assert!(read_to_end(&mut say(&tcp, "PROXY TCP4 ").await).await.is_empty());
    proxy.counts("invalid_proxy_headers_total", 3.0).await;
}

/// A server that sends its last message and closes while its client is still sending.
async fn hangs_up(mut served: TcpStream) {
    let mut first = [0; 1];
    timeout(PATIENCE, served.read_exact(&mut first)).await.unwrap().unwrap();
    served.write_all(b"the last message").await.unwrap();
}

/// Bytes received by a client that sends until sending fails.
async fn receives(client: TcpStream) -> Vec<u8> {
    let (mut reader, mut writer) = client.into_split();
    let sending = tokio::spawn(async move { while writer.write_all(&[7; 4096]).await.is_ok() {} });
    let received = read_to_end(&mut reader).await;
    sending.abort();
    received
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_message_before_server_close_is_delivered_through_tunnel() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let [tcp, by_host] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let listen = format!("--listen tcp:{tcp}=shop/one --listen {by_host}+connect");
    let _proxy = Proxy::with(&world, &listen).await;
    for _ in 0..40 {
        let (client, served) = tokio::join!(say(&tcp, ""), server.accept_tunnel());
        let (received, ()) = tokio::join!(receives(client), hangs_up(served));
        assert_eq!(received, b"the last message");
    }
    for _ in 0..20 {
        let mut client = say(&by_host, "CONNECT one.shop:443 HTTP/1.1\r\nhost: one.shop:443\r\n\r\n").await;
        let served = server.accept_tunnel().await;
        read_head(&mut client).await;
        let (received, ()) = tokio::join!(receives(client), hangs_up(served));
        assert_eq!(received, b"the last message", "after CONNECT");
    }
}
