//! Servers that send invalid responses over HTTP/1.1 and HTTP/2, and policies that name undeclared services.

use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
};

use crate::harness::{
    Proxy, RawServer, Spec, World, beside_others,
    h2::{self, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, frame},
    read_head, say, until,
};

/// A request that must not be retried.
const POST: &str = "POST / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: 0\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_response_yields_502_and_closes_its_connection() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
    for answer in [
        "\0\0\0\0",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\ntea!",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx y: z\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        &long,
        &many,
    ] {
        let mut program = say(&proxy.for_one, POST).await;
        let mut served = server.accept().await;
        read_head(&mut served).await;
        // The proxy may close the connection before everything is sent.
        let _ = served.write_all(answer.as_bytes()).await;
        let told = read_head(&mut program).await;
        assert!(told.starts_with("http/1.1 502 "), "{}: {told}", &answer[..answer.len().min(60)]);
        let ends = crate::harness::read_to_end(&mut served).await;
        assert!(ends.is_empty(), "nothing more is asked there");
    }
    let services = proxy.page("/services").await;
    assert!(services.contains("\"faults\":10") && services.contains("\"inFlight\":0"), "{services}");
}

/// A registered server whose HTTP/2 frames the test writes itself.
async fn http2_server(world: &World) -> (TcpListener, MeshServer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = MeshServer::builder("shop/one").instance("one").protocol(Protocol::Http2);
    let server = server.address(listener.local_addr().unwrap()).agent(world.agent_address());
    let server = server.start().await.unwrap();
    world.serves("shop/one", "one").await;
    (listener, server)
}

/// Accepts a connection, sends the preface, and waits for a request; returns the connection and the stream id.
async fn asked(listener: &TcpListener) -> (TcpStream, u32) {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut [0; 24]).await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    loop {
        let came = h2::read(&mut stream).await.expect("it is asked");
        if came.kind == HEADERS {
            return (stream, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_frames_fail_only_calls_of_their_server() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let (listener, _server) = http2_server(&world).await;
    let proxy = Proxy::start(&world).await;
    let ok = [0x88];
    for (wrong, answer) in [
        ("invalid headers", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 40])),
        ("no status", frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01x\x01y")),
        ("data before headers", frame(h2::DATA, 0, 1, b"tea")),
        ("a stream that no request opened", frame(HEADERS, END_HEADERS, 99, &ok)),
        (
            "a head that goes on elsewhere",
            [frame(HEADERS, 0, 1, &ok), frame(h2::DATA, 0, 1, b"tea")].concat(),
        ),
        ("a frame that is too long", [&[0xff, 0xff, 0xff, h2::DATA, 0, 0, 0, 0, 1][..], &[0; 64]].concat()),
        ("a setting of the wrong size", frame(SETTINGS, 0, 0, &[0; 5])),
        ("a promise", frame(5, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &ok].concat())),
        ("its reset", frame(RST_STREAM, 0, 1, &2_u32.to_be_bytes())),
    ] {
        let mut program = say(&proxy.for_one, POST).await;
        let (mut served, _) = asked(&listener).await;
        let _ = served.write_all(&answer).await;
        let told = read_head(&mut program).await;
        assert!(told.starts_with("http/1.1 502 "), "{wrong}: {told}");
        drop(served);
        proxy.counts("upstream_connections_open", 0.0).await;
    }
    let services = proxy.page("/services").await;
    assert!(services.contains("\"faults\":9") && services.contains("\"inFlight\":0"), "{services}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undeclared_backend_fails_only_calls_sent_there() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    let policy = "kind: Policy\nservice: shop/one\nroutes:\n  - name: gone\n    match: {path: {prefix: /gone}}\n    \
        split: [{service: shop/nobody, weight: 1}]\n  - name: all\n    mirror: {service: shop/nobody, share: 100%}\n";
    world.apply(policy).await.ok();
    until("the copy is missed", async || {
        let answer = read_head(&mut say(&proxy.for_one, POST).await).await;
        assert!(answer.starts_with("http/1.1 200 "), "{answer}");
        proxy.metric("mirrors_failed_total").await + proxy.metric("mirrors_skipped_total").await >= 1.0
    })
    .await;
    let gone = read_head(&mut say(&proxy.for_one, POST.replace(" / ", " /gone ")).await).await;
    assert!(gone.starts_with("http/1.1 404 ") && gone.contains("unknown_service"), "{gone}");
    // A policy for an undeclared service waits for the service and affects no call.
    world.apply("kind: Policy\nservice: shop/nobody\ntimeout: 1s\n").await;
    let answer = read_head(&mut say(&proxy.by_host, POST).await).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    let nobody = "GET / HTTP/1.1\r\nhost: nobody.shop\r\n\r\n";
    let answer = read_head(&mut say(&proxy.by_host, nobody).await).await;
    assert!(answer.starts_with("http/1.1 404 ") && answer.contains("unknown_service"), "{answer}");
}
