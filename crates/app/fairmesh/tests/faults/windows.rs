//! An unread message must not stall other messages on the same HTTP/2 connection.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::harness::{Proxy, RawServer, World, beside_others, read_head, read_to_end, say};

/// More bytes than sockets and windows hold.
const LARGE: usize = 16 << 20;
/// Time limit of a call. A response that waits for another one would wait for the idle timeout of the proxy and fail.
const AT_ONCE: Duration = Duration::from_secs(10);

/// An HTTP/2 request with a body.
fn post(host: &str, body: Bytes) -> Request<Full<Bytes>> {
    Request::post(format!("http://{host}/")).body(Full::new(body)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_that_server_does_not_read_stalls_no_other_request() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let unread = RawServer::start(&world, "shop/one", "one").await;
    let two = RawServer::start(&world, "shop/two", "two").await;
    let proxy = Proxy::with(&world, "--idle-timeout 30s").await;
    let stream = TokioIo::new(TcpStream::connect(&proxy.by_host).await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let uploads: Vec<_> =
        (0..3).map(|_| tokio::spawn(client.send_request(post("one.shop", vec![7; LARGE].into())))).collect();
    let mut held = Vec::new();
    for _ in &uploads {
        held.push(unread.accept().await);
    }
    let served = async {
        let mut served = two.accept().await;
        read_head(&mut served).await;
        served.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea").await.unwrap();
        served
    };
    let sent = timeout(AT_ONCE, client.send_request(post("two.shop", "milk".into())));
    let (response, _served) = tokio::join!(sent, served);
    let response = response.expect("it waits for the upload").unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "tea");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_response_readers_stall_no_other_response_of_same_endpoint() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let builder = MeshServer::builder("shop/one").instance("one").protocol(Protocol::Http2);
    let builder = builder.address(listener.local_addr().unwrap()).agent(world.agent_address());
    let server = builder.start().await.unwrap();
    let serving = tokio::spawn({
        let server = server.clone();
        let large = Bytes::from(vec![7; LARGE]);
        let service = tower::service_fn(move |_: Request<Incoming>| {
            let response = Response::new(Full::new(large.clone()));
            async move { Ok::<_, Infallible>(response) }
        });
        async move { serve_http(listener, service, &server).await.unwrap() }
    });
    world.serves("shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1 --idle-timeout 30s").await;
    let request = "GET / HTTP/1.1\r\nhost: one.shop\r\nconnection: close\r\n\r\n";
    let mut slow = Vec::new();
    for _ in 0..6 {
        let mut client = say(&proxy.for_one, request).await;
        read_head(&mut client).await;
        slow.push(client);
    }
    let mut client = say(&proxy.for_one, request).await;
    let response = timeout(AT_ONCE, read_to_end(&mut client)).await.expect("it waits for the slow readers");
    assert!(response.len() > LARGE, "{} bytes", response.len());
    serving.abort();
}
