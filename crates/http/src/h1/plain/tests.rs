//! Whatever is read as plain must be read alike by those who take everything apart, and go on as they would have it go on.

use bytes::{Bytes, BytesMut};
use fairmesh_model::arith::Generator;
use http::{HeaderMap, Method, StatusCode, header};

use super::*;
use crate::{
    h1::{Decoder, HeadReader, Piece, RequestReader},
    path::Path,
};

const PLANTED: [Planted; 6] = [
    Planted::KeepsConnection,
    Planted::IgnoresCodings,
    Planted::TakesAnyHost,
    Planted::CutsBodies,
    Planted::TakesAnyPath,
    Planted::TakesAnyStatus,
];

const DEADLINE: header::HeaderName = header::HeaderName::from_static("x-fairmesh-deadline");

/// What is the connection's, and what is written anew.
const OURS: [header::HeaderName; 5] = [
    header::CONNECTION,
    header::HeaderName::from_static("keep-alive"),
    header::CONTENT_LENGTH,
    header::DATE,
    DEADLINE,
];

const METHODS: [&str; 8] = ["GET", "GET", "POST", "POST", "PUT", "HEAD", "CONNECT", "M-SEARCH"];
const TARGETS: [&str; 8] =
    ["/", "/a?b=c&d=%20", "/a/b-c.d_e~f", "http://cart.shop/a", "*", "/a#b", "/<a>?q={\"a\":1}`", "/a|b^c"];
const VERSIONS: [&str; 5] = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"];
const STATUS: [&str; 9] = [
    "200 OK",
    "200 OK",
    "201 Made",
    "404 Not Found",
    "204 No Content",
    "304 ",
    "421 Misdirected",
    "503 Later",
    "101 X",
];
const FIELDS: [&str; 16] = [
    "x: 1",
    "X-Two:2 ",
    "x: other",
    "connection: close",
    "Connection: Keep-Alive",
    "connection: x",
    "Keep-Alive: timeout=5",
    "te: trailers",
    "expect: 100-continue",
    "cookie: a=b; c",
    "transfer-encoding: chunked",
    "host: other.shop",
    "upgrade: h2c",
    "trailer: x",
    "Date: then",
    "x-fairmesh-key: 7",
];
const SPOILS: &[u8] = b"\r\n:;, 019afHT/\0\x80-x";

/// A message as whoever is next has it.
#[derive(Debug, PartialEq)]
struct Seen {
    method: Method,
    /// Path and query, as a server is asked for them.
    target: String,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    length: usize,
}

struct Script(Generator);

impl Script {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.0.below(of.len() as u64) as usize]
    }

    /// A message that begins so, with fields, a body maybe, and what comes after it.
    fn message(&mut self, first: String, host: bool) -> Vec<u8> {
        let mut text = first + "\r\n";
        if host {
            text += "Host: cart.shop:80\r\n";
        }
        for _ in 0..self.0.below(4) {
            // Most fields are usual ones.
            let field = if self.0.below(3) == 0 { self.one(&FIELDS) } else { self.one(&FIELDS[..2]) };
            text += &format!("{field}\r\n");
        }
        let size = self.0.below(30);
        match self.0.below(8) {
            0 => text += "\r\n",
            1 => text += &format!("content-length: {size}\r\nContent-Length: {size}\r\n\r\n"),
            2 => text += &format!("content-length: {}\r\n\r\n", size + 1),
            _ => text += &format!("Content-Length: {size}\r\n\r\n"),
        }
        text += &"tea".repeat(10)[..size as usize];
        let mut text = text.into_bytes();
        if self.0.below(4) == 0 {
            let at = self.0.below(text.len() as u64) as usize;
            let byte = SPOILS[self.0.below(SPOILS.len() as u64) as usize];
            if self.0.below(2) == 0 { text[at] = byte } else { text.insert(at, byte) }
        }
        text
    }

    fn request(&mut self) -> Vec<u8> {
        let first = format!("{} {} {}", self.one(&METHODS), self.one(&TARGETS), self.one(&VERSIONS));
        let mut text = self.message(first, true);
        if self.0.below(4) == 0 {
            text.extend_from_slice(b"GET /next HTTP/1.1\r\n");
        }
        text
    }

    fn answer(&mut self) -> Vec<u8> {
        let first = format!("{} {}", self.one(&VERSIONS), self.one(&STATUS));
        self.message(first, false)
    }
}

/// The body, where all of it is there.
fn body(mut decoder: Decoder, input: &mut BytesMut) -> Option<Bytes> {
    let mut body = Vec::new();
    while let Some(piece) = decoder.decode(input).ok()? {
        if let Piece::Data(data) = piece {
            body.extend_from_slice(&data);
        }
    }
    decoder.is_done().then(|| body.into())
}

/// What others go by is left, and values of one name are in one order.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    OURS.iter().for_each(|name| drop(headers.remove(name)));
    headers
}

fn request_apart(text: &[u8]) -> Option<Seen> {
    let mut input = BytesMut::from(text);
    let received = RequestReader::default().read(&mut input).ok()??;
    let tells = received.head.headers().keys().any(|name| name.as_str().starts_with("x-fairmesh-k"));
    if !received.persistent || received.expects_continue || tells {
        return None;
    }
    let (head, ()) = received.head.into_parts();
    let body = body(received.body, &mut input)?;
    let headers = passed_on(&head.headers);
    let length = text.len() - input.len();
    let target =
        Path::of(Some(head.uri.path_and_query()?.clone()), head.extensions.get()).as_str().to_owned();
    Some(Seen { method: head.method, target, status: StatusCode::OK, headers, body, length })
}

fn request_plain(text: &[u8]) -> Option<Seen> {
    let mut room = no_fields();
    let plain = PlainRequest::read(text, &mut room)?;
    let mut out = Vec::new();
    plain.write(plain.host, Some((&DEADLINE, 7)), &mut out);
    out.extend_from_slice(plain.body);
    let seen = request_apart(&out);
    let seen = seen.map(|seen| Seen { length: plain.length, target: plain.path.to_owned(), ..seen });
    // What is no request any more is none that the other one is.
    Some(seen.unwrap_or(Seen {
        method: Method::TRACE,
        target: String::new(),
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        length: 0,
    }))
}

fn answer_apart(text: &[u8]) -> Option<Seen> {
    let mut input = BytesMut::from(text);
    let answer = HeadReader::new(&Method::GET).read(&mut input).ok()??;
    let unusual = answer.head.status().is_server_error() || answer.head.status() == 421;
    if !answer.persistent || unusual {
        return None;
    }
    let body = body(answer.body, &mut input)?;
    let (head, ()) = answer.head.into_parts();
    let headers = passed_on(&head.headers);
    let length = text.len() - input.len();
    let (method, target) = (Method::GET, String::new());
    Some(Seen { method, target, status: head.status, headers, body, length })
}

fn answer_plain(text: &[u8]) -> Option<Seen> {
    let mut room = no_fields();
    let plain = PlainAnswer::read(text, &mut room)?;
    let mut out = Vec::new();
    plain.write(&mut out, || *b"Sun, 06 Nov 1994 08:49:37 GMT", false);
    out.extend_from_slice(plain.body);
    let seen = answer_apart(&out).map(|seen| Seen { length: text.len(), ..seen });
    Some(seen.unwrap_or(Seen {
        method: Method::TRACE,
        target: String::new(),
        status: plain.status,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        length: 0,
    }))
}

/// Draws messages; how many were plain, and how many of those were not what others take them for.
fn compare(seeds: u64) -> (usize, usize) {
    let (mut plain, mut wrong) = (0, 0);
    for seed in 0..seeds {
        let mut script = Script(Generator::new(seed));
        let (request, answer) = (script.request(), script.answer());
        let both = [
            (request_plain(&request), request_apart(&request)),
            (answer_plain(&answer), answer_apart(&answer)),
        ];
        for (ours, theirs) in both {
            plain += usize::from(ours.is_some());
            wrong += usize::from(ours.is_some() && ours != theirs);
        }
    }
    (plain, wrong)
}

#[test]
fn hosts_that_are_malformed_are_not_plain_and_paths_that_uris_refuse_are() {
    let is_plain = |target: &str, host: &str| {
        let text = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let mut room = no_fields();
        PlainRequest::read(text.as_bytes(), &mut room)
            .is_some_and(|plain| plain.path == target && plain.host == host)
    };
    for host in ["cart.shop", "Cart.Shop.", "cart.shop.:65535", "cart.shop:9999", "a", "10.0.0.1:80"] {
        assert!(is_plain("/", host) && fairmesh_model::HostPort::parse(host).is_some(), "{host}");
    }
    for host in ["", ".", "a..", "a.:", "a:65536", "a:99999", "a:80x", "a:123456", "u@a", "a b", "[::1]"] {
        assert!(!is_plain("/", host), "{host}");
    }
    for byte in b'!'..=b'~' {
        let target = format!("/a?q={}", char::from(byte));
        assert_eq!(is_plain(&target, "a"), byte != b'#', "{target}");
    }
    for target in ["a", "*", "http://a/", "/é", "/a#b"] {
        assert!(!is_plain(target, "a"), "{target}");
    }
}

#[test]
fn plain_messages_are_what_those_who_take_them_apart_have_them_be() {
    let (plain, wrong) = compare(40_000);
    assert_eq!(wrong, 0);
    assert!(plain > 10_000, "{plain} of 80000 were plain");
}

#[test]
fn mistakes_that_were_planted_would_be_found() {
    for planted in PLANTED {
        PLANTED_HERE.set(Some(planted));
        let (_, wrong) = compare(12_000);
        PLANTED_HERE.set(None);
        assert!(wrong > 10, "only {wrong} of 24000 messages show {planted:?}");
    }
}

#[test]
fn what_is_usual_is_plain() {
    let request = b"POST /a?b=c HTTP/1.1\r\nHost: cart.shop\r\nConnection: keep-alive\r\nUser-Agent: x\r\nContent-Length: 3\r\n\r\nteaGET";
    let mut room = no_fields();
    let plain = PlainRequest::read(request, &mut room).unwrap();
    assert_eq!((plain.method, plain.path, plain.host), ("POST", "/a?b=c", "cart.shop"));
    assert_eq!((plain.body, plain.length), (&b"tea"[..], request.len() - 3));
    let mut out = Vec::new();
    plain.write("own", Some((&DEADLINE, 15_000)), &mut out);
    let text = "POST /a?b=c HTTP/1.1\r\nhost: own\r\nx-fairmesh-deadline: 15000\r\nUser-Agent: x\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), text);
    let answer = b"HTTP/1.1 404 Nope\r\nServer: x\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\ntea";
    let mut room = no_fields();
    let plain = PlainAnswer::read(answer, &mut room).unwrap();
    assert_eq!(plain.value(&header::SERVER), Some(&b"x"[..]));
    let mut out = Vec::new();
    plain.write(&mut out, || *b"Sun, 06 Nov 1994 08:49:37 GMT", true);
    let text = "HTTP/1.1 404 Not Found\r\nServer: x\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nconnection: close\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), text);
}

#[test]
fn what_is_long_or_not_all_there_is_not_plain() {
    let long = |size: usize| {
        format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n{}", "t".repeat(size))
    };
    let is_plain = |text: &str| PlainRequest::read(text.as_bytes(), &mut no_fields()).is_some();
    assert!(is_plain(&long(MOST_BODY)) && !is_plain(&long(MOST_BODY + 1)));
    let text = long(9);
    assert!((0..text.len()).all(|end| !is_plain(&text[..end])));
    let many = |count: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: 1\r\n".repeat(count));
    assert!(is_plain(&many(MOST_FIELDS - 1)) && !is_plain(&many(MOST_FIELDS)));
}
