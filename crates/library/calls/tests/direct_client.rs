//! Requests to one server without a choice of endpoint.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::time::Duration;

use bytes::Bytes;
use fairmesh_calls::{Fault, Protocol, forwarding::DirectClient};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

const RESPONSE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea";

/// Reads a request and writes the response.
async fn exchange(stream: &mut TcpStream, response: &str) {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(response.as_bytes()).await.unwrap();
}

async fn get(client: &DirectClient) -> Result<Bytes, Fault> {
    let request = Request::get("http://server/").body(Empty::new()).unwrap();
    let response = client.send(request).await?;
    Ok(response.into_body().collect().await.unwrap().to_bytes())
}

/// Sends a second request over a connection that the server ends after this time, having sent this beginning of a
/// response. Returns whether the request was sent again, and its outcome.
async fn second_request(after: Duration, beginning: &str) -> (bool, Result<Bytes, Fault>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = DirectClient::start("the program", address, Protocol::Http1).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        exchange(&mut stream, RESPONSE).await;
        exchange(&mut stream, beginning).await;
        sleep(after).await;
        drop(stream);
        let repeated = timeout(Duration::from_millis(200), listener.accept()).await;
        let Ok(Ok((mut stream, _))) = repeated else { return false };
        exchange(&mut stream, RESPONSE).await;
        true
    };
    let requests = async {
        assert_eq!(get(&client).await.unwrap(), "tea");
        get(&client).await
    };
    tokio::join!(server, requests)
}

#[tokio::test]
async fn request_is_repeated_if_reused_connection_closes_at_once() {
    let (is_repeated, outcome) = second_request(Duration::ZERO, "").await;
    assert!(is_repeated && outcome.unwrap() == "tea");
}

#[tokio::test]
async fn request_read_by_server_is_not_repeated_after_connection_close() {
    for (after, beginning) in [
        (Duration::ZERO, "HTTP/1.1 2"),
        (Duration::ZERO, "HTTP/1.1 103 Early Hints\r\n\r\n"),
        (Duration::from_millis(150), ""),
    ] {
        let (is_repeated, outcome) = second_request(after, beginning).await;
        assert!(!is_repeated && outcome.is_err(), "{after:?} {beginning}");
    }
}
