//! Responses that clients do not read end at the deadline of their call.

use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use http::Request;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::Mesh;
use crate::harness::{beside_others, until};

const DEADLINE: &str = "400";

/// Number of ended floods of the servers `one` and `two`.
fn ended_floods(mesh: &Mesh) -> usize {
    mesh.servers.iter().map(|server| server.ended_floods.load(SeqCst)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_http1_response_is_cut_at_deadline() {
    let _machine = beside_others().await;
    let mesh = Mesh::start("").await;
    let mut clients = Vec::new();
    for host in ["one", "two"] {
        let mut client = TcpStream::connect(&mesh.proxy.by_host).await.unwrap();
        let request = format!(
            "GET /any/flood HTTP/1.1\r\nhost: {host}.shop\r\nx-fairmesh-deadline: {DEADLINE}\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        clients.push(client);
    }
    // The client's idle timeout would end them too, but is far beyond the time limit of the test.
    until("both responses are cut", async || ended_floods(&mesh) == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_http2_response_is_cut_at_deadline() {
    let _machine = beside_others().await;
    let mesh = Mesh::start("").await;
    let stream = TcpStream::connect(&mesh.proxy.by_host).await.unwrap();
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    for host in ["one", "two"] {
        let request = Request::get(format!("http://{host}.shop/any/flood"))
            .header("x-fairmesh-deadline", DEADLINE)
            .body(())
            .unwrap();
        requests = requests.ready().await.unwrap();
        let (response, _) = requests.send_request(request, true).unwrap();
        let mut body = response.await.unwrap().into_body();
        // The window stays closed, since received data is not released.
        let mut data: Option<Result<Bytes, h2::Error>> = body.data().await;
        while let Some(Ok(_)) = data {
            data = body.data().await;
        }
        let reason = data.and_then(Result::err).and_then(|error| error.reason());
        assert_eq!(reason, Some(h2::Reason::CANCEL));
    }
    until("both responses are cut", async || ended_floods(&mesh) == 2).await;
    driver.abort();
}
