//! Requests that are unreadable or incomplete.

use bytes::Bytes;
use fairmesh_model::Probe;
use http::Request;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::Fleet;
use crate::harness::{Process, Program, beside_others, free_port, read_head, say, until};

const OUT_OF_RANGE: &str = "11";
const INVALID_ARGUMENT: &str = "3";

/// gRPC status of a call with this body.
async fn status(to: &str, path: &str, body: &'static [u8]) -> String {
    let (requests, connection) = h2::client::handshake(TcpStream::connect(to).await.unwrap()).await.unwrap();
    let driven = tokio::spawn(connection);
    let request = Request::post(format!("http://mesh{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("fairmesh-version", "1")
        .body(())
        .unwrap();
    let (response, mut sending) = requests.ready().await.unwrap().send_request(request, false).unwrap();
    sending.send_data(Bytes::from_static(body), true).unwrap();
    let response = response.await.unwrap();
    let status = response.headers().get("grpc-status").expect("a response without a body");
    let status = status.to_str().unwrap().to_owned();
    driven.abort();
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_grpc_request_gets_invalid_argument() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let (mesh, lookaside) = ("/fairmesh.v1.Rib/Read", "/fairmesh.lookaside.v1.Lookaside/Pick");
    for (to, path) in
        [(&fleet.control_grpc, mesh), (&fleet.replica_grpc, mesh), (&fleet.lookaside_grpc, lookaside)]
    {
        let cases: [(&str, &'static [u8], &str); 5] = [
            ("no protobuf", &[0, 0, 0, 0, 3, 0xff, 0xff, 0xff], INVALID_ARGUMENT),
            ("an end within the message", &[0, 0, 0, 0, 9, 1, 2], INVALID_ARGUMENT),
            ("a flag that there is not", &[7, 0, 0, 0, 0], INVALID_ARGUMENT),
            ("two messages", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], INVALID_ARGUMENT),
            ("a message that is too long", &[0, 0xff, 0, 0, 0, 1], OUT_OF_RANGE),
        ];
        for (what, body, expected) in cases {
            assert_eq!(status(to, path, body).await, expected, "{what} to {path} at {to}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_request_headers_get_431() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let mut stream = TcpStream::connect(&fleet.control_http).await.unwrap();
    let headers = [b"GET /healthz HTTP/1.1\r\nx: ", &[b'y'; 64 << 10][..]].concat();
    // The listener may close the connection before everything is sent.
    let _ = stream.write_all(&headers).await;
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("http/1.1 431"), "{head}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_pages_refuse_probes_of_health_checkers() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let (listen, admin) = (free_port(), format!("127.0.0.1:{}", free_port()));
    let proxy = format!(
        "proxy --agent unix:{} --listen 127.0.0.1:{listen} --admin {admin} --client-id proxy",
        fleet.agent_socket().display()
    );
    let _proxy = Process::start(Program::fairmesh(fleet.path("proxy.log"), &proxy));
    until("the proxy serves pages", async || TcpStream::connect(&admin).await.is_ok()).await;
    let pages = [&fleet.control_http, &fleet.replica_http, &fleet.agent_http, &fleet.lookaside_http, &admin];
    for to in pages {
        let check = format!("GET /healthz HTTP/1.1\r\nhost: a\r\nuser-agent: {}\r\n\r\n", Probe::USER_AGENT);
        let response = read_head(&mut say(to, check).await).await;
        assert!(response.starts_with("http/1.1 403 "), "{to}: {response}");
    }
}
