//! Our connection and hyper's are sent the same bytes, cut into pieces at the same places, by a server that then closes:
//! they must understand the same, or both refuse. Where ours refuses what hyper takes, the reason is one of a few.

use bytes::Bytes;
use fairmesh_model::arith::Generator;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1 as hyper1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::connection::request;
use crate::{
    BoxError,
    transport::{
        SendError,
        h1::{Incoming, connection::Connection},
    },
};
use fairmesh_http::h1::Malformed;

/// What hyper takes and we do not, since two readers could understand it differently.
const STRICTER: [&str; 3] = [
    "both a content-length and a transfer-encoding",
    "a transfer-encoding other than chunked",
    "a line of the trailers",
];

/// What a client understood.
#[derive(Debug, PartialEq)]
struct Understood {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

impl Understood {
    async fn of<B>(response: Response<B>) -> Result<Self, BoxError>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(Into::into)?;
        let trailers = body.trailers().cloned();
        let (status, version, headers) = (head.status, head.version, head.headers);
        Ok(Self { status, version, headers, body: body.to_bytes(), trailers })
    }
}

/// Reads a request, which has no body, and writes the pieces one by one.
async fn serve(mut stream: DuplexStream, pieces: Vec<Vec<u8>>) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut asked).await.unwrap();
    }
    for piece in pieces {
        // A client that has refused what came so far is gone.
        if stream.write_all(&piece).await.is_err() {
            return;
        }
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
}

async fn ours(
    method: &Method,
    pieces: Vec<Vec<u8>>,
    change: impl FnOnce(&mut Incoming<DuplexStream>),
) -> Result<Understood, BoxError> {
    let (near, far) = duplex(1 << 20);
    let server = tokio::spawn(serve(far, pieces));
    let mut slot = Some(request(method, &[], ""));
    let answer = match Box::new(Connection::new(near, None)).exchange(&mut slot, None).await {
        Ok(mut response) => {
            change(response.body_mut());
            Understood::of(response).await
        }
        Err(SendError::Broken(error)) => Err(error),
        Err(error) => panic!("{error}"),
    };
    server.await.unwrap();
    answer
}

async fn hypers(method: &Method, pieces: Vec<Vec<u8>>) -> Result<Understood, BoxError> {
    let (near, far) = duplex(1 << 20);
    let server = tokio::spawn(serve(far, pieces));
    let (mut sender, connection) = hyper1::handshake(TokioIo::new(near)).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::builder().method(method).uri("/").body(Empty::<Bytes>::new())?;
    let answer = match sender.send_request(request).await {
        Ok(response) => Understood::of(response).await,
        Err(error) => Err(error.into()),
    };
    drop(sender);
    let _ = connection.await;
    server.await.unwrap();
    answer
}

/// Whether both mean the same, as far as they have to.
fn agree(ours: &Result<Understood, BoxError>, hypers: &Result<Understood, BoxError>) -> bool {
    match (ours, hypers) {
        (Ok(ours), Ok(hypers)) => ours == hypers,
        (Err(error), Ok(_)) => error
            .downcast_ref::<Malformed>()
            .is_some_and(|why| STRICTER.iter().any(|reason| why.to_string().ends_with(reason))),
        // It knows no version of HTTP/1 above 1.1, which RFC 9110 2.5 has read as that.
        (Ok(_), Err(error)) => error.to_string() == "invalid HTTP version parsed",
        (Err(_), Err(_)) => true,
    }
}

// What answers are made of; what stands twice is drawn more often.
const INTERIM: [&str; 4] = ["", "", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Hints\r\nlink: a\r\n\r\n"];
const VERSIONS: [&str; 4] = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"];
const STATUS: [&str; 7] =
    ["200 OK", "200", "404 Not Found", "204 No Content", "304 Not Modified", "503 \u{e9}", "799 Odd"];
const FIELDS: [&str; 7] = [
    "x: 1",
    "X:2",
    "connection: close",
    "Connection: keep-alive",
    "x-empty:",
    "set-cookie: a=b; c",
    "te: trailers",
];
const LENGTHS: [&str; 3] = ["content-length: 7", "Content-Length: 7\r\ncontent-length: 7, 7", "x: 7"];
const CODINGS: [&str; 2] = ["transfer-encoding: chunked", "Transfer-Encoding:  CHUNKED"];
const EXTENSIONS: [&str; 5] = ["", "", ";", " ;a=b", "\t"];
const LAST: [&str; 4] =
    ["0\r\n\r\n", "00\r\n\r\n", "0\r\nx-sum: 1\r\n\r\n", "0;z\r\nA: 1\r\na:\t2 \r\n\r\nmore"];
/// What a spoilt answer may have anywhere.
const SPOILS: &[u8] = b"\r\n:;, 019afHT/\0\x80-x";

/// Draws what a server may send.
struct Script(Generator);

impl Script {
    fn below(&mut self, count: usize) -> usize {
        self.0.below(count as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn answer(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.below(3) {
            text += self.one(&INTERIM);
        }
        text += &format!("{} {}\r\n", self.one(&VERSIONS), self.one(&STATUS));
        for _ in 0..self.below(4) {
            text += &format!("{}\r\n", self.one(&FIELDS));
        }
        let size = if self.below(16) == 0 { self.below(200_000) } else { self.below(40) };
        match self.below(6) {
            0 => text += "\r\n",
            1 => text += &format!("{}\r\n\r\n", self.one(&LENGTHS)),
            2 | 3 => text += &format!("content-length: {size}\r\n\r\n"),
            _ => return text + &format!("{}\r\n\r\n{}", self.one(&CODINGS), self.chunks()),
        }
        text + &"tea".repeat(size)[..size]
    }

    fn chunks(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.below(4) {
            let size = 1 + self.below(40);
            let digits = if self.below(2) == 0 { format!("{size:x}") } else { format!("0{size:X}") };
            text += &format!("{digits}{}\r\n{}\r\n", self.one(&EXTENSIONS), "t".repeat(size));
        }
        text + self.one(&LAST)
    }

    /// Changes one byte, or two.
    fn spoil(&mut self, text: &mut Vec<u8>) {
        for _ in 0..1 + self.below(2) {
            let at = self.below(text.len());
            let byte = SPOILS[self.below(SPOILS.len())];
            match self.below(4) {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                2 => text.truncate(at + 1),
                _ => drop(text.remove(at)),
            }
        }
    }

    fn cut(&mut self, mut text: Vec<u8>) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        while !text.is_empty() {
            let rest = text.split_off(1 + self.below(text.len()));
            pieces.push(std::mem::replace(&mut text, rest));
        }
        pieces
    }
}

fn draw(seed: u64) -> (Method, Vec<Vec<u8>>) {
    let mut script = Script(Generator::new(seed));
    let method = if script.below(8) == 0 { Method::HEAD } else { Method::GET };
    let mut text = script.answer().into_bytes();
    if script.below(2) == 0 {
        script.spoil(&mut text);
    }
    (method, script.cut(text))
}

#[tokio::test]
async fn we_understand_what_hyper_understands() {
    let (mut understood, mut refused) = (0, 0);
    for seed in 0..4_000 {
        let (method, pieces) = draw(seed);
        let hypers = hypers(&method, pieces.clone()).await;
        let ours = ours(&method, pieces.clone(), |_| ()).await;
        let sent = String::from_utf8_lossy(&pieces.concat()).into_owned();
        assert!(agree(&ours, &hypers), "{seed} {method} {sent:?}\nours: {ours:?}\nhyper's: {hypers:?}");
        *(if ours.is_ok() { &mut understood } else { &mut refused }) += 1;
    }
    assert!(understood > 1_000 && refused > 300, "{understood} understood, {refused} refused");
}

#[tokio::test]
async fn a_reader_that_stops_a_byte_too_soon_would_be_found() {
    let mut found = 0;
    for seed in 0..100 {
        let (method, pieces) = draw(seed);
        let hypers = hypers(&method, pieces.clone()).await;
        let wrong = ours(&method, pieces, Incoming::stop_too_soon).await;
        found += usize::from(!agree(&wrong, &hypers));
    }
    assert!(found > 10, "only {found} of 100 scripts tell them apart");
}
