//! The borrowed parser must read and forward messages exactly as the complete parsers do.

use bytes::{Bytes, BytesMut};
use fairmesh_model::arith::Generator;
use http::{HeaderMap, Method, StatusCode, header};

use super::*;
use crate::{
    h1::{Decoder, Piece, RequestReader, ResponseReader},
    path::Path,
};

const MUTANTS: [Mutant; 6] = [
    Mutant::KeepsConnection,
    Mutant::IgnoresCodings,
    Mutant::AcceptsAnyHost,
    Mutant::TruncatesBodies,
    Mutant::AcceptsAnyPath,
    Mutant::AcceptsAnyStatus,
];

const ADDED: header::HeaderName = header::HeaderName::from_static("x-own-deadline");

fn is_reserved(name: &str) -> bool {
    name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-own-"))
}

/// Hop-by-hop headers, and headers that the proxy rewrites.
const REWRITTEN: [header::HeaderName; 5] = [
    header::CONNECTION,
    header::HeaderName::from_static("keep-alive"),
    header::CONTENT_LENGTH,
    header::DATE,
    ADDED,
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
    "x-own-key: 7",
];
const NOISE: &[u8] = b"\r\n:;, 019afHT/\0\x80-x";

/// A message as its recipient reads it.
#[derive(Debug, PartialEq)]
struct ParsedMessage {
    method: Method,
    /// Path and query of the request.
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

    /// Builds a message with this first line, random fields, perhaps a body, and perhaps trailing bytes.
    fn message(&mut self, first: String, host: bool) -> Vec<u8> {
        let mut text = first + "\r\n";
        if host {
            text += "Host: cart.shop:80\r\n";
        }
        for _ in 0..self.0.below(4) {
            // Most fields are common ones.
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
            let byte = NOISE[self.0.below(NOISE.len() as u64) as usize];
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

    fn response(&mut self) -> Vec<u8> {
        let first = format!("{} {}", self.one(&VERSIONS), self.one(&STATUS));
        self.message(first, false)
    }
}

/// Returns the body if it is complete.
fn body(mut decoder: Decoder, input: &mut BytesMut) -> Option<Bytes> {
    let mut body = Vec::new();
    while let Some(piece) = decoder.decode(input).ok()? {
        if let Piece::Data(data) = piece {
            body.extend_from_slice(&data);
        }
    }
    decoder.is_done().then(|| body.into())
}

/// Removes hop-by-hop headers and sorts the values of each name.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    REWRITTEN.iter().for_each(|name| drop(headers.remove(name)));
    headers
}

fn parse_request(text: &[u8]) -> Option<ParsedMessage> {
    let mut input = BytesMut::from(text);
    let received = RequestReader::default().read(&mut input).ok()??;
    let has_reserved = received.head.headers().keys().any(|name| name.as_str().starts_with("x-own-k"));
    if !received.persistent || received.expects_continue || has_reserved {
        return None;
    }
    let (head, ()) = received.head.into_parts();
    let body = body(received.body, &mut input)?;
    let headers = forwarded(&head.headers);
    let length = text.len() - input.len();
    let target =
        Path::of(Some(head.uri.path_and_query()?.clone()), head.extensions.get()).as_str().to_owned();
    Some(ParsedMessage { method: head.method, target, status: StatusCode::OK, headers, body, length })
}

fn borrow_request(text: &[u8]) -> Option<ParsedMessage> {
    let mut storage = header_storage();
    let borrowed = BorrowedRequest::read(text, &mut storage, is_reserved)?;
    let mut out = Vec::new();
    borrowed.write(borrowed.host, (Some(&(ADDED, 7)), None), &mut out);
    out.extend_from_slice(borrowed.body);
    let seen = parse_request(&out);
    let seen =
        seen.map(|seen| ParsedMessage { length: borrowed.length, target: borrowed.path.to_owned(), ..seen });
    // If the forwarded request is malformed, the difference from the original is reported.
    Some(seen.unwrap_or(ParsedMessage {
        method: Method::TRACE,
        target: String::new(),
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        length: 0,
    }))
}

fn parse_response(text: &[u8]) -> Option<ParsedMessage> {
    let mut input = BytesMut::from(text);
    let response = ResponseReader::new(&Method::GET).read(&mut input).ok()??;
    let unusual = response.head.status().is_server_error() || response.head.status() == 421;
    if !response.persistent || unusual {
        return None;
    }
    let body = body(response.body, &mut input)?;
    let (head, ()) = response.head.into_parts();
    let headers = forwarded(&head.headers);
    let length = text.len() - input.len();
    let (method, target) = (Method::GET, String::new());
    Some(ParsedMessage { method, target, status: head.status, headers, body, length })
}

fn borrow_response(text: &[u8]) -> Option<ParsedMessage> {
    let mut storage = header_storage();
    let borrowed = BorrowedResponse::read(text, &mut storage)?;
    let mut out = Vec::new();
    borrowed.write(&mut out, || *b"Sun, 06 Nov 1994 08:49:37 GMT", false);
    out.extend_from_slice(borrowed.body);
    let seen = parse_response(&out).map(|seen| ParsedMessage { length: text.len(), ..seen });
    Some(seen.unwrap_or(ParsedMessage {
        method: Method::TRACE,
        target: String::new(),
        status: borrowed.status,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        length: 0,
    }))
}

/// Runs random messages. Returns how many were borrowed, and how many of those differ from the complete parsers'
/// result.
fn compare(seeds: u64) -> (usize, usize) {
    let (mut borrowed, mut wrong) = (0, 0);
    for seed in 0..seeds {
        let mut script = Script(Generator::new(seed));
        let (request, response) = (script.request(), script.response());
        let both = [
            (borrow_request(&request), parse_request(&request)),
            (borrow_response(&response), parse_response(&response)),
        ];
        for (ours, theirs) in both {
            borrowed += usize::from(ours.is_some());
            wrong += usize::from(ours.is_some() && ours != theirs);
        }
    }
    (borrowed, wrong)
}

#[test]
fn fast_parser_accepts_only_valid_hosts_and_paths() {
    let is_borrowed = |target: &str, host: &str| {
        let text = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let mut storage = header_storage();
        BorrowedRequest::read(text.as_bytes(), &mut storage, is_reserved)
            .is_some_and(|borrowed| borrowed.path == target && borrowed.host == host)
    };
    for host in ["cart.shop", "Cart.Shop.", "cart.shop.:65535", "cart.shop:9999", "a", "10.0.0.1:80"] {
        assert!(is_borrowed("/", host) && fairmesh_model::HostPort::parse(host).is_some(), "{host}");
    }
    for host in ["", ".", "a..", "a.:", "a:65536", "a:99999", "a:80x", "a:123456", "u@a", "a b", "[::1]"] {
        assert!(!is_borrowed("/", host), "{host}");
    }
    for byte in b'!'..=b'~' {
        let target = format!("/a?q={}", char::from(byte));
        assert_eq!(is_borrowed(&target, "a"), byte != b'#', "{target}");
    }
    for target in ["a", "*", "http://a/", "/é", "/a#b"] {
        assert!(!is_borrowed(target, "a"), "{target}");
    }
}

#[test]
fn fast_parser_agrees_with_complete_parsers() {
    let (borrowed, wrong) = compare(40_000);
    assert_eq!(wrong, 0);
    assert!(borrowed > 10_000, "{borrowed} of 80000 were plain");
}

#[test]
fn comparison_detects_every_mutant_of_fast_parser() {
    for mutant in MUTANTS {
        ACTIVE_MUTANT.set(Some(mutant));
        let (_, wrong) = compare(12_000);
        ACTIVE_MUTANT.set(None);
        assert!(wrong > 10, "only {wrong} of 24000 messages show {mutant:?}");
    }
}

#[test]
fn fast_parser_accepts_common_messages() {
    let request = b"POST /a?b=c HTTP/1.1\r\nHost: cart.shop\r\nConnection: keep-alive\r\nUser-Agent: x\r\nContent-Length: 3\r\n\r\nteaGET";
    let mut storage = header_storage();
    let borrowed = BorrowedRequest::read(request, &mut storage, is_reserved).unwrap();
    assert_eq!((borrowed.method, borrowed.path, borrowed.host), ("POST", "/a?b=c", "cart.shop"));
    assert_eq!((borrowed.body, borrowed.length), (&b"tea"[..], request.len() - 3));
    let mut out = Vec::new();
    borrowed.write("own", (Some(&(ADDED, 15_000)), None), &mut out);
    let text = "POST /a?b=c HTTP/1.1\r\nhost: own\r\nx-own-deadline: 15000\r\nUser-Agent: x\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), text);
    let response = b"HTTP/1.1 404 Nope\r\nServer: x\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\ntea";
    let mut storage = header_storage();
    let borrowed = BorrowedResponse::read(response, &mut storage).unwrap();
    assert_eq!(borrowed.value(&header::SERVER), Some(&b"x"[..]));
    let mut out = Vec::new();
    borrowed.write(&mut out, || *b"Sun, 06 Nov 1994 08:49:37 GMT", true);
    let text = "HTTP/1.1 404 Not Found\r\nServer: x\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nconnection: close\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), text);
}

#[test]
fn fast_parser_leaves_long_and_incomplete_messages_to_complete_parser() {
    let long = |size: usize| {
        format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n{}", "t".repeat(size))
    };
    let is_borrowed =
        |text: &str| BorrowedRequest::read(text.as_bytes(), &mut header_storage(), is_reserved).is_some();
    assert!(is_borrowed(&long(MAX_BODY)) && !is_borrowed(&long(MAX_BODY + 1)));
    let text = long(9);
    assert!((0..text.len()).all(|end| !is_borrowed(&text[..end])));
    let many = |count: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: 1\r\n".repeat(count));
    assert!(is_borrowed(&many(MAX_FIELDS - 1)) && !is_borrowed(&many(MAX_FIELDS)));
}
