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
    lean::{Broken, Ended, Left, Switch, Upload, serve},
    stopping::Stopping,
};

type Reader = ReadHalf<DuplexStream>;
type Served = JoinHandle<Ended<Reader, WriteHalf<DuplexStream>>>;

const PATIENCE: Duration = Duration::from_secs(75);
const LATE: Duration = Duration::from_secs(5);
const WEBSOCKET: &str = "GET /101 HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";

/// Answers with the status that the path or, of a CONNECT, the host names and as much body as the port, once the request was read; with 101 before that to
/// `/unread` and to `/held`, whose body somebody keeps; with success after a while to `/late`.
async fn answer(request: Request<Upload<Reader>>) -> Response<Full<Bytes>> {
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

fn begin(stopping: Arc<Stopping>) -> (Served, DuplexStream) {
    let (near, far) = duplex(1 << 16);
    (tokio::spawn(async move { serve(split(near), PATIENCE, &stopping, &answer).await }), far)
}

/// What a program is told that says this and then nothing more.
async fn say(text: &str) -> String {
    let (served, mut far) = begin(Arc::default());
    far.write_all(text.as_bytes()).await.unwrap();
    far.shutdown().await.unwrap();
    let mut told = String::new();
    let ended = async { drop(served.await.unwrap()) };
    tokio::join!(ended, far.read_to_string(&mut told)).1.unwrap();
    told
}

/// The head that a program is told which asks with this, and what is left to whoever takes its connection.
async fn switch(text: &str, stopping: Arc<Stopping>) -> (String, Bytes) {
    let (served, mut far) = begin(stopping);
    far.write_all(text.as_bytes()).await.unwrap();
    let ended = served.await.unwrap();
    let Ended::Switched(Left { read, mut writer, .. }, _) = ended else { panic!("{text}: {ended:?}") };
    writer.shutdown().await.unwrap();
    let mut told = String::new();
    far.read_to_string(&mut told).await.unwrap();
    let told = told.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")).collect();
    (told, read.freeze())
}

#[tokio::test]
async fn after_a_switch_the_connection_is_whose_that_was_offered() {
    let post = "POST /101 HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 3\r\n\r\ntea\x01";
    for text in [&format!("{WEBSOCKET}\x01"), post] {
        let (told, read) = switch(text, Arc::default()).await;
        let head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
        assert_eq!((told.as_str(), &read[..]), (head, &b"\x01"[..]));
    }
}

#[tokio::test]
async fn a_tunnel_begins_with_an_answer_without_body_or_length() {
    for (version, status) in [("1.1", "HTTP/1.1 200 OK"), ("1.0", "HTTP/1.0 200 OK")] {
        let text = format!("CONNECT a.b:443 HTTP/{version}\r\nhost: a.b\r\n\r\nhello");
        let (told, read) = switch(&text, Arc::default()).await;
        assert_eq!(told, format!("{status}\r\nupgrade: websocket\r\n\r\n"));
        assert_eq!(read, "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_may_say_all_before_its_tunnel_begins() {
    let (served, mut far) = begin(Arc::default());
    far.write_all(b"CONNECT late:1 HTTP/1.1\r\n\r\nhello").await.unwrap();
    far.shutdown().await.unwrap();
    let ended = served.await.unwrap();
    let Ended::Switched(Left { read, .. }, _) = ended else { panic!("{ended:?}") };
    assert_eq!(read, b"hello"[..]);
    // One that has gone without a word waits for nothing.
    let (served, far) = begin(Arc::default());
    let mut far = far;
    far.write_all(b"CONNECT late:1 HTTP/1.1\r\n\r\n").await.unwrap();
    far.shutdown().await.unwrap();
    assert!(matches!(served.await.unwrap(), Ended::Broken(Broken::Gone)));
}

#[tokio::test]
async fn what_was_meant_for_a_tunnel_that_is_refused_is_no_request() {
    let told = say("CONNECT 403:3 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nhost: pay.shop\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 403 ") && told.contains("connection: close\r\n"), "{told}");
    assert!(told.ends_with("\r\n\r\nxxx") && told.matches("HTTP/1.1").count() == 1, "{told}");
}

#[tokio::test]
async fn a_proxy_that_stops_still_switches() {
    let stopping = Arc::<Stopping>::default();
    stopping.begin(Duration::from_secs(60));
    let (told, _) = switch(WEBSOCKET, stopping).await;
    assert!(told.contains("connection: upgrade\r\n") && !told.contains("close"), "{told}");
}

#[tokio::test]
async fn who_is_answered_otherwise_asks_on() {
    let refused = WEBSOCKET.replace("/101", "http://a.b:40000/426");
    let told = say(&format!("{refused}{refused}no request\r\n\r\n")).await;
    let mut told = told.split("HTTP/1.1 ").skip(1);
    for _ in 0..2 {
        let answer = told.next().unwrap();
        assert!(answer.starts_with("426 ") && !answer.contains("connection: "), "{answer}");
        assert!(answer.ends_with(&"x".repeat(40_000)), "nothing comes before it is whole");
    }
    assert!(told.next().unwrap().starts_with("400 "));
    assert_eq!(told.next(), None);
}

#[tokio::test]
async fn a_switch_that_nobody_asked_for_is_a_mistake_of_the_server() {
    let astray = StatusCode::BAD_GATEWAY.as_str();
    for text in [
        "GET /101 HTTP/1.1\r\n\r\n",
        "GET /101 HTTP/1.1\r\nupgrade: websocket\r\n\r\n",
        "GET /101 HTTP/1.0\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "CONNECT 101:1 HTTP/1.1\r\n\r\n",
        // Where the body ends is not known: what comes after it cannot be told from it.
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
async fn whoever_waits_for_the_connection_gets_it_once_and_nothing_where_there_is_none() {
    let offer = || {
        let mut extensions = Extensions::new();
        let begins = Switch::offer(&mut extensions);
        (extensions.remove::<Switch>().unwrap(), begins)
    };
    let (switch, begins) = offer();
    let (near, mut far) = duplex(16);
    let other = switch.clone();
    begins.begin(near);
    let mut stream = switch.begun().await.unwrap();
    stream.write_all(b"tea").await.unwrap();
    drop(stream);
    let mut told = String::new();
    far.read_to_string(&mut told).await.unwrap();
    assert_eq!(told, "tea");
    assert!(other.begun().await.is_none());
    let (switch, begins) = offer();
    drop(begins);
    assert!(switch.begun().await.is_none());
}
