//! Differential test against hyper: both servers receive the same bytes in the same pieces from a client that
//! then closes its side. Both must report the same requests and send the same responses, or both must refuse.
//! Where only our server refuses, the reason must be one of [`STRICTER`].

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use fairmesh_calls::BoxError;
use fairmesh_http::h1::{Piece, ResponseReader};
use fairmesh_model::arith::Generator;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};

use crate::{
    http1::{
        connection::{Connection, Mutation},
        serve::serve,
    },
    shutdown::Shutdown,
};

/// Reasons for which our server refuses what hyper accepts: two servers could interpret the request
/// differently.
const STRICTER: [&str; 7] = [
    "both a content-length and a transfer-encoding",
    "a transfer-encoding other than chunked",
    "more than one host",
    "a CONNECT with a body",
    "CONNECT to something else than a host and a port",
    "a target without scheme and path",
    "a target that is neither a path nor a URI",
];

/// Injected bugs. The test must detect each of them.
const MUTATIONS: [Mutation; 5] = [
    Mutation::BodyIsNextRequest,
    Mutation::NeverCloses,
    Mutation::NoChunks,
    Mutation::OneMessageARead,
    Mutation::NoTail,
];

/// Much longer than a test takes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A request as parsed.
#[derive(Debug, PartialEq)]
struct ParsedRequest {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

/// A response as received by the client.
#[derive(Debug, PartialEq)]
struct ReceivedResponse {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

/// All requests and responses of a connection, except requests whose bodies broke off.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    requests: Vec<ParsedRequest>,
    responses: Vec<ReceivedResponse>,
    continued: usize,
}

type Parts = stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;
type Reply = Either<Full<Bytes>, StreamBody<Parts>>;

/// Reads the request to its end. The path selects the response.
async fn respond<B>(request: Request<B>, requests: &Mutex<Vec<ParsedRequest>>) -> Response<Reply>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Response::builder().status(418).body(Either::Left(Full::default())).unwrap();
    };
    let trailers = body.trailers().cloned();
    let body = body.to_bytes();
    let frames = |more: Option<HeaderMap>| {
        let data = [Bytes::from_static(b"tea"), Bytes::new(), body.clone(), Bytes::from_static(b"!")];
        let data = data.into_iter().map(Frame::data).chain(more.map(Frame::trailers));
        Either::Right(StreamBody::new(stream::iter(data.map(Ok).collect::<Vec<_>>())))
    };
    let mut response =
        Response::builder().header("x-size", body.len()).header("X-Two", "a").header("x-two", "b");
    response = match head.uri.path() {
        "/204" => response.status(204),
        "/304" => response.status(304),
        "/odd" => response.status(799).header(header::DATE, "then"),
        "/trailers" => response.header(header::TRAILER, "x-sum"),
        _ => response,
    };
    let sum = HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))]);
    let reply = match head.uri.path() {
        "/chunked" => frames(None),
        "/trailers" => frames(Some(sum)),
        "/204" | "/304" | "/empty" => Either::Left(Full::default()),
        _ => Either::Left(Full::new(body.clone())),
    };
    let (method, uri, version, headers) = (head.method, head.uri, head.version, head.headers);
    requests.lock().unwrap().push(ParsedRequest { method, uri, version, headers, body, trailers });
    response.body(reply).unwrap()
}

/// Writes the pieces one by one, closes its side, and reads to the end.
async fn client(stream: DuplexStream, pieces: Vec<Vec<u8>>) -> Vec<u8> {
    let (mut reader, mut writer) = split(stream);
    let writes = async {
        for piece in pieces {
            // A server that has refused a request is gone.
            if writer.write_all(&piece).await.is_err() {
                return;
            }
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
        let _ = writer.shutdown().await;
    };
    let mut bytes = Vec::new();
    let (_, read) = tokio::join!(writes, reader.read_to_end(&mut bytes));
    read.unwrap();
    bytes
}

/// Parses the responses. `requests` tells which responses answer HEAD.
fn parse_responses(bytes: &[u8], requests: &[ParsedRequest]) -> Vec<ReceivedResponse> {
    let mut input = BytesMut::from(bytes);
    let mut responses = Vec::new();
    while !input.is_empty() {
        let method = requests.get(responses.len()).map_or(Method::GET, |request| request.method.clone());
        let response = ResponseReader::new(&method).read(&mut input).unwrap().expect("a whole head");
        let (mut decoder, mut body, mut trailers) = (response.body, Vec::new(), None);
        while let Some(piece) = decoder.decode(&mut input).unwrap() {
            match piece {
                Piece::Data(data) => body.extend_from_slice(&data),
                Piece::Trailers(map) => trailers = Some(map),
            }
        }
        assert!(decoder.close(), "{:?}", String::from_utf8_lossy(bytes));
        let mut headers = response.head.headers().clone();
        if headers.get(header::DATE).is_some_and(|date| date != "then") {
            headers.remove(header::DATE);
        }
        let (status, version) = (response.head.status(), response.head.version());
        // hyper sends `connection` after CONNECT if the client sent it.
        if method == Method::CONNECT && status.is_success() {
            headers.remove(header::CONNECTION);
        }
        // hyper announces keep-alive even where the end of the connection delimits the body.
        if version == Version::HTTP_10 && !headers.contains_key(header::CONTENT_LENGTH) {
            headers.remove(header::CONNECTION);
        }
        responses.push(ReceivedResponse { status, version, headers, body: body.into(), trailers });
    }
    responses
}

fn outcome(bytes: &[u8], requests: Arc<Mutex<Vec<ParsedRequest>>>) -> Outcome {
    let requests = Arc::into_inner(requests).unwrap().into_inner().unwrap();
    let mut responses = parse_responses(bytes, &requests);
    // After a broken body the response may or may not be sent.
    responses.retain(|responses| responses.status != StatusCode::IM_A_TEAPOT);
    let continued = bytes.windows(12).filter(|part| part == b"HTTP/1.1 100").count();
    Outcome { requests, responses, continued }
}

async fn ours(pieces: Vec<Vec<u8>>, mutation: Option<Mutation>) -> Outcome {
    let requests = Arc::new(Mutex::default());
    let (near, far) = duplex(1 << 20);
    let client = tokio::spawn(client(far, pieces));
    {
        let (reader, writer) = split(near);
        let mut connection = Connection::new(reader, writer, IDLE_TIMEOUT);
        connection.set_mutation(mutation);
        let respond = |request| respond(request, &requests);
        drop(serve(connection, &Shutdown::default(), &respond).await);
    }
    outcome(&client.await.unwrap(), requests)
}

async fn hypers(pieces: Vec<Vec<u8>>) -> Outcome {
    let requests = Arc::new(Mutex::default());
    let (near, far) = duplex(1 << 20);
    let client = tokio::spawn(client(far, pieces));
    let service = service_fn(|request| {
        let requests = Arc::clone(&requests);
        async move { Ok::<_, Infallible>(respond(request, &requests).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).max_headers(128).max_buf_size(64 * 1024);
    let _ = builder.serve_connection(TokioIo::new(near), service).await;
    outcome(&client.await.unwrap(), requests)
}

/// Whether both outcomes are equivalent.
fn agree(ours: &Outcome, hypers: &Outcome) -> bool {
    let refused = |responses: &&ReceivedResponse| !responses.headers.contains_key("x-size");
    let last = ours.responses.last().filter(refused);
    let served = |outcome: &Outcome| outcome.responses.iter().filter(|responses| !refused(responses)).count();
    let both = served(ours);
    let stricter = last.is_some_and(|responses| {
        STRICTER.iter().any(|reason| responses.body.strip_suffix(b"\n") == Some(reason.as_bytes()))
    });
    let as_many = if stricter {
        both <= served(hypers)
    } else {
        both == served(hypers) && ours.requests.len() == hypers.requests.len()
    };
    // A client that has sent its body needs no 100 (RFC 9110 10.1.1), which hyper sends nevertheless.
    as_many
        && ours.continued <= hypers.continued
        && ours.requests.len() <= hypers.requests.len()
        && ours.requests.iter().zip(&hypers.requests).all(|(ours, hypers)| ours == hypers)
        && ours.responses[..both] == hypers.responses[..both]
}

// Parts of generated requests. Entries that appear twice are drawn more often.
const METHODS: [&str; 8] = ["GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "M-SEARCH", "CONNECT"];
const TARGETS: [&str; 10] =
    ["/", "/a?b=c", "/204", "/304", "/odd", "/chunked", "/trailers", "/empty", "http://cart.shop/a", "*"];
const VERSIONS: [&str; 4] = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"];
const FIELDS: [&str; 11] = [
    "x: 1",
    "X:2",
    "connection: close",
    "Connection: keep-alive",
    "connection: x, Keep-Alive",
    "x-empty:",
    "te: trailers",
    "Expect: 100-continue",
    "cookie: a=b; c",
    "Connection: Upgrade",
    "upgrade: websocket",
];
const CODINGS: [&str; 3] =
    ["transfer-encoding: chunked", "Transfer-Encoding:  CHUNKED", "transfer-encoding: chunked"];
const EXTENSIONS: [&str; 5] = ["", "", ";", " ;a=b", "\t"];
const LAST: [&str; 3] = ["0\r\n\r\n", "00\r\n\r\n", "0\r\nx-sum: 1\r\nA:\t2 \r\n\r\n"];
/// Bytes that replace or extend others in spoiled input.
const SPOILS: &[u8] = b"\r\n:;, 019afHT/\0\x80-x";

/// Generates input of clients.
struct Script {
    chance: Generator,
    /// Whether bodies are too large to be buffered.
    long: bool,
}

impl Script {
    fn below(&mut self, count: usize) -> usize {
        self.chance.below(count as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn request(&mut self) -> String {
        let (method, target) = match self.one(&METHODS) {
            // Our server closes the connection after a refused tunnel; hyper reads on.
            "CONNECT" => ("CONNECT", "cart.shop:80"),
            // Our server refuses `*` for all methods but OPTIONS.
            method if method != "OPTIONS" => (method, self.one(&TARGETS[..9])),
            method => (method, self.one(&TARGETS)),
        };
        let mut text = format!("{method} {target} {}\r\n", self.one(&VERSIONS));
        text += "host: cart.shop\r\n";
        for _ in 0..self.below(4) {
            text += &format!("{}\r\n", self.one(&FIELDS));
        }
        let most = if self.long && self.below(4) == 0 { 180_000 } else { 9_000 };
        let size = if self.long { 3_000 + self.below(most) } else { self.below(40) };
        match self.below(16) {
            0..5 => return text + "\r\n",
            5..9 => text += &format!("content-length: {size}\r\n\r\n"),
            9 => text += &format!("Content-Length: {size}\r\ncontent-length: {size}\r\n\r\n"),
            10 => text += &format!("content-length: {size}\r\n{}\r\n\r\n", self.one(&CODINGS)),
            11 => text += &format!("content-length: {size}, {size}\r\n\r\n"),
            12 => {
                text +=
                    &format!("host: other.shop\r\ntransfer-encoding: gzip\r\ncontent-length: {size}\r\n\r\n")
            }
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

    /// Changes one or two bytes.
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
            if text.is_empty() {
                return;
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

fn draw(seed: u64) -> Vec<Vec<u8>> {
    let mut script = Script { chance: Generator::new(seed), long: false };
    let mut text = Vec::new();
    for _ in 0..1 + script.below(3) {
        text.extend_from_slice(script.request().as_bytes());
    }
    if script.below(2) == 0 {
        script.spoil(&mut text);
    }
    script.cut(text)
}

/// Valid requests with long bodies.
fn draw_long(seed: u64) -> Vec<Vec<u8>> {
    let mut script = Script { chance: Generator::new(seed), long: true };
    let requests: String = (0..3).map(|_| script.request()).collect();
    script.cut(requests.into_bytes())
}

/// Sends the same pieces to both servers, and fails with the input if the outcomes differ.
async fn compare(pieces: Vec<Vec<u8>>) -> Outcome {
    let hypers = hypers(pieces.clone()).await;
    let ours = ours(pieces.clone(), None).await;
    let sent: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
    assert!(agree(&ours, &hypers), "{sent:#?}\nours: {ours:#?}\nhyper's: {hypers:#?}");
    ours
}

#[tokio::test]
async fn random_requests_get_same_responses_as_hyper() {
    let (mut served, mut refused) = (0, 0);
    for seed in 0..4_000 {
        let ours = compare(draw(seed)).await;
        served += ours.requests.len();
        refused += usize::from(ours.responses.len() > ours.requests.len());
    }
    assert!(served > 3_000 && refused > 500, "{served} served, {refused} refused");
}

#[tokio::test]
async fn long_request_bodies_get_same_responses_as_hyper() {
    let mut served = 0;
    for seed in 0..400 {
        served += compare(draw_long(seed)).await.requests.len();
    }
    assert!(served > 400, "{served} served");
}

#[tokio::test]
async fn request_split_into_pieces_gets_same_response() {
    let scripts: [&[u8]; 4] = [
        b"POST /a HTTP/1.1\r\nhost: cart.shop\r\nContent-Length: 3\r\n\r\nteaGET /chunked HTTP/1.1\r\nhost: a.b\r\n\r\n",
        b"PUT /trailers HTTP/1.1\r\nhost: a.b\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\r\n3;x\r\ntea\r\n0\r\na: 1\r\n\r\nHEAD / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nteas!GET / HTTP/1.1\r\nbad\r\n\r\n",
        b"\r\n\nGET / HTTP/1.1\nhost: a.b\n\nPOST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nteas\r\n",
    ];
    for script in scripts {
        for at in 1..script.len() {
            let (first, rest) = script.split_at(at);
            compare(vec![first.to_vec(), rest.to_vec()]).await;
        }
    }
}

#[tokio::test]
async fn comparison_with_hyper_detects_injected_http1_bugs() {
    for mutation in MUTATIONS {
        let mut found = 0;
        for seed in 0..200 {
            let pieces = draw(seed);
            let hypers = hypers(pieces.clone()).await;
            // An invalid response counts as detected as well.
            let ours = tokio::spawn(ours(pieces, Some(mutation))).await;
            found += usize::from(!ours.is_ok_and(|ours| agree(&ours, &hypers)));
        }
        assert!(found > 10, "only {found} of 200 scripts show {mutation:?}");
    }
}
