use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Extensions, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    http1::{
        connection::Connection,
        connection_end::{ConnectionEnd, ConnectionError, ConnectionParts},
        request_body::IncomingBody,
        serve::serve,
        upgraded_stream::OnUpgrade,
    },
    shutdown::Shutdown,
};

type Reader = ReadHalf<DuplexStream>;
type Served = JoinHandle<ConnectionEnd<Reader, WriteHalf<DuplexStream>>>;

const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
const LATE: Duration = Duration::from_secs(5);
const WEBSOCKET: &str = "GET /101 HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";

/// The path, or the host of a CONNECT, selects the status, and the port the length of the body. Responds
/// after the request was read, except that `/unread` and `/held`, whose body stays referenced, get 101
/// earlier; `/late` gets 200 later.
async fn respond(request: Request<IncomingBody<Reader>>) -> Response<Full<Bytes>> {
    let path = match request.uri().path().trim_start_matches('/') {
        "" => request.uri().host().unwrap_or_default().to_owned(),
        path => path.to_owned(),
    };
    let size = request.uri().port_u16().unwrap_or(3);
    match path.as_str() {
        "unread" => {}
        "held" => mem::forget(request.into_body()),
        "late" => sleep(LATE).await,
        _ => drop(request.into_body().collect().await),
    }
    let status = path.parse().unwrap_or(if ["unread", "held"].contains(&&*path) { 101 } else { 200 });
    let body = Bytes::from("x".repeat(size.into()));
    Response::builder().status(status).header(header::UPGRADE, "websocket").body(body.into()).unwrap()
}

fn begin(shutdown: Arc<Shutdown>) -> (Served, DuplexStream) {
    let (near, far) = duplex(1 << 16);
    let (reader, writer) = split(near);
    let connection = Connection::new(reader, writer, IDLE_TIMEOUT);
    (tokio::spawn(async move { serve(connection, &shutdown, &respond).await }), far)
}

/// The responses to a client that sends `text` and closes its side.
async fn say(text: &str) -> String {
    let (served, mut far) = begin(Arc::default());
    far.write_all(text.as_bytes()).await.unwrap();
    far.shutdown().await.unwrap();
    let mut told = String::new();
    let ended = async { drop(served.await.unwrap()) };
    tokio::join!(ended, far.read_to_string(&mut told)).1.unwrap();
    told
}

/// The response headers, and the bytes left for the owner of the upgraded connection.
async fn switch(text: &str, shutdown: Arc<Shutdown>) -> (String, Bytes) {
    let (served, mut far) = begin(shutdown);
    far.write_all(text.as_bytes()).await.unwrap();
    let ended = served.await.unwrap();
    let ConnectionEnd::Upgraded(ConnectionParts { read, mut writer, .. }, _) = ended else {
        panic!("{text}: {ended:?}")
    };
    writer.shutdown().await.unwrap();
    let mut told = String::new();
    far.read_to_string(&mut told).await.unwrap();
    let told = told.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")).collect();
    (told, read.freeze())
}

#[tokio::test]
async fn upgraded_connection_is_handed_over_with_bytes_already_read() {
    let post = "POST /101 HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 3\r\n\r\ntea\x01";
    for text in [&format!("{WEBSOCKET}\x01"), post] {
        let (told, read) = switch(text, Arc::default()).await;
        let head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
        assert_eq!((told.as_str(), &read[..]), (head, &b"\x01"[..]));
    }
}

#[tokio::test]
async fn connect_response_has_no_body_and_no_length() {
    for (version, status) in [("1.1", "HTTP/1.1 200 OK"), ("1.0", "HTTP/1.0 200 OK")] {
        let text = format!("CONNECT a.b:443 HTTP/{version}\r\nhost: a.b\r\n\r\nhello");
        let (told, read) = switch(&text, Arc::default()).await;
        assert_eq!(told, format!("{status}\r\nupgrade: websocket\r\n\r\n"));
        assert_eq!(read, "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn data_sent_before_tunnel_starts_is_delivered() {
    let (served, mut far) = begin(Arc::default());
    far.write_all(b"CONNECT late:1 HTTP/1.1\r\n\r\nhello").await.unwrap();
    far.shutdown().await.unwrap();
    let ended = served.await.unwrap();
    let ConnectionEnd::Upgraded(ConnectionParts { read, .. }, _) = ended else { panic!("{ended:?}") };
    assert_eq!(read, b"hello"[..]);
    // A disconnected client does not wait for anything.
    let (served, far) = begin(Arc::default());
    let mut far = far;
    far.write_all(b"CONNECT late:1 HTTP/1.1\r\n\r\n").await.unwrap();
    far.shutdown().await.unwrap();
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Failed(ConnectionError::Disconnected)));
}

#[tokio::test]
async fn data_after_refused_connect_is_not_parsed_as_request() {
    let told = say("CONNECT 403:3 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nhost: pay.shop\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 403 ") && told.contains("connection: close\r\n"), "{told}");
    assert!(told.ends_with("\r\n\r\nxxx") && told.matches("HTTP/1.1").count() == 1, "{told}");
}

#[tokio::test]
async fn http_upgrades_work_during_shutdown() {
    let shutdown = Arc::<Shutdown>::default();
    shutdown.start(Duration::from_secs(60));
    let (told, _) = switch(WEBSOCKET, shutdown).await;
    assert!(told.contains("connection: upgrade\r\n") && !told.contains("close"), "{told}");
}

#[tokio::test]
async fn refused_upgrade_keeps_connection_open() {
    let refused = WEBSOCKET.replace("/101", "http://a.b:40000/426");
    let told = say(&format!("{refused}{refused}no request\r\n\r\n")).await;
    let mut told = told.split("HTTP/1.1 ").skip(1);
    for _ in 0..2 {
        let response = told.next().unwrap();
        assert!(response.starts_with("426 ") && !response.contains("connection: "), "{response}");
        assert!(response.ends_with(&"x".repeat(40_000)), "nothing comes before it is whole");
    }
    assert!(told.next().unwrap().starts_with("400 "));
    assert_eq!(told.next(), None);
}

#[tokio::test]
async fn unrequested_upgrade_by_server_is_bad_gateway() {
    let astray = StatusCode::BAD_GATEWAY.as_str();
    for text in [
        "GET /101 HTTP/1.1\r\n\r\n",
        "GET /101 HTTP/1.1\r\nupgrade: websocket\r\n\r\n",
        "GET /101 HTTP/1.0\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "CONNECT 101:1 HTTP/1.1\r\n\r\n",
        // The end of the body is unknown, so later bytes cannot be delimited.
        "POST /unread HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 99\r\n\r\ntea",
        "POST /held HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 99\r\n\r\ntea",
    ] {
        let told = say(&format!("{text}GET / HTTP/1.1\r\n\r\n")).await;
        assert!(told.split(' ').nth(1) == Some(astray), "{text}: {told}");
        assert!(!told.contains("upgrade"), "{told}");
        assert_eq!(told.matches("HTTP/1.").count(), 1, "the connection ends: {told}");
    }
}

#[tokio::test]
async fn upgraded_connection_is_delivered_to_only_one_receiver() {
    let offer = || {
        let mut extensions = Extensions::new();
        let pending_upgrade = OnUpgrade::offer(&mut extensions);
        (extensions.remove::<OnUpgrade>().unwrap(), pending_upgrade)
    };
    let (on_upgrade, pending_upgrade) = offer();
    let (near, mut far) = duplex(16);
    let other = on_upgrade.clone();
    pending_upgrade.fulfill(near);
    let mut stream = on_upgrade.upgraded().await.unwrap();
    stream.write_all(b"tea").await.unwrap();
    drop(stream);
    let mut told = String::new();
    far.read_to_string(&mut told).await.unwrap();
    assert_eq!(told, "tea");
    assert!(other.upgraded().await.is_none());
    let (on_upgrade, pending_upgrade) = offer();
    drop(pending_upgrade);
    assert!(on_upgrade.upgraded().await.is_none());
}
