//! Our connection and hyper's receive the same bytes, split at the same places, from a server that then closes. Both
//! must parse the same response, or both must fail. Responses that ours rejects and hyper accepts must have one of a
//! few reasons.

use bytes::Bytes;
use fairmesh_model::arith::Generator;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1 as hyper1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::connection::request;
use crate::{
    SendError,
    h1::{ResponseBody, connection::Connection},
};
use fairmesh_http::{BoxError, h1::Malformed};

/// Reasons for which ours rejects what hyper accepts, because two parsers could read it differently.
const STRICTER: [&str; 3] = [
    "both a content-length and a transfer-encoding",
    "a transfer-encoding other than chunked",
    "a line of the trailers",
];

/// A response as a client parsed it.
#[derive(Debug, PartialEq)]
struct Parsed {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

impl Parsed {
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
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut request).await.unwrap();
    }
    for piece in pieces {
        // A client that has rejected the previous bytes has closed the connection.
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
    change: impl FnOnce(&mut ResponseBody<DuplexStream>),
) -> Result<Parsed, BoxError> {
    let (near, far) = duplex(1 << 20);
    let server = tokio::spawn(serve(far, pieces));
    let mut pending = Some(request(method, &[], ""));
    let result = match Box::new(Connection::new(near, None)).exchange(&mut pending, None).await {
        Ok(mut response) => {
            change(response.body_mut());
            Parsed::of(response).await
        }
        Err(SendError::Broken(error)) => Err(error),
        Err(error) => panic!("{error}"),
    };
    server.await.unwrap();
    result
}

async fn hypers(method: &Method, pieces: Vec<Vec<u8>>) -> Result<Parsed, BoxError> {
    let (near, far) = duplex(1 << 20);
    let server = tokio::spawn(serve(far, pieces));
    let (mut sender, connection) = hyper1::handshake(TokioIo::new(near)).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::builder().method(method).uri("/").body(Empty::<Bytes>::new())?;
    let result = match sender.send_request(request).await {
        Ok(response) => Parsed::of(response).await,
        Err(error) => Err(error.into()),
    };
    drop(sender);
    let _ = connection.await;
    server.await.unwrap();
    result
}

/// Whether the two results agree, apart from the permitted differences.
fn agree(ours: &Result<Parsed, BoxError>, hypers: &Result<Parsed, BoxError>) -> bool {
    match (ours, hypers) {
        (Ok(ours), Ok(hypers)) => ours == hypers,
        (Err(error), Ok(_)) => error
            .downcast_ref::<Malformed>()
            .is_some_and(|why| STRICTER.iter().any(|reason| why.to_string().ends_with(reason))),
        // hyper rejects minor versions above 1.1, which RFC 9110 2.5 reads as 1.1.
        (Ok(_), Err(error)) => error.to_string() == "invalid HTTP version parsed",
        (Err(_), Err(_)) => true,
    }
}

// Parts of responses; parts that occur repeatedly are drawn more often.
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
/// Bytes that may corrupt a response anywhere.
const CORRUPTIONS: &[u8] = b"\r\n:;, 019afHT/\0\x80-x";

/// Generates random responses.
struct Script(Generator);

impl Script {
    fn below(&mut self, count: usize) -> usize {
        self.0.below(count as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn response(&mut self) -> String {
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

    /// Corrupts one or two bytes.
    fn corrupt(&mut self, text: &mut Vec<u8>) {
        for _ in 0..1 + self.below(2) {
            let at = self.below(text.len());
            let byte = CORRUPTIONS[self.below(CORRUPTIONS.len())];
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
    let mut text = script.response().into_bytes();
    if script.below(2) == 0 {
        script.corrupt(&mut text);
    }
    (method, script.cut(text))
}

/// hyper's result, with `content-length` in the single form that ours gives it.
fn with_one_length(mut parsed: Parsed) -> Parsed {
    if fairmesh_http::h1::normalize_length(&mut parsed.headers).is_err() {
        parsed.headers.remove(http::header::CONTENT_LENGTH);
    }
    parsed
}

#[tokio::test]
async fn h1_client_parses_responses_like_hyper() {
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0..4_000 {
        let (method, pieces) = draw(seed);
        let hypers = hypers(&method, pieces.clone()).await.map(with_one_length);
        let ours = ours(&method, pieces.clone(), |_| ()).await;
        let sent = String::from_utf8_lossy(&pieces.concat()).into_owned();
        assert!(agree(&ours, &hypers), "{seed} {method} {sent:?}\nours: {ours:?}\nhyper's: {hypers:?}");
        *(if ours.is_ok() { &mut accepted } else { &mut rejected }) += 1;
    }
    assert!(accepted > 1_000 && rejected > 300, "{accepted} accepted, {rejected} rejected");
}

#[tokio::test]
async fn comparison_with_hyper_detects_parser_that_stops_one_byte_early() {
    let mut found = 0;
    for seed in 0..100 {
        let (method, pieces) = draw(seed);
        let hypers = hypers(&method, pieces.clone()).await;
        let wrong = ours(&method, pieces, ResponseBody::stop_too_soon).await;
        found += usize::from(!agree(&wrong, &hypers));
    }
    assert!(found > 10, "only {found} of 100 scripts tell them apart");
}
