use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};

use super::*;

/// Result of reading all bytes of a server until it closes.
#[derive(Debug, PartialEq)]
struct ParsedResponse {
    status: StatusCode,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    persistent: bool,
    /// Bytes left for the next message.
    rest: Bytes,
}

/// Reads these pieces; `None` where the message is incomplete.
fn read<'a>(
    method: &Method,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<Option<ParsedResponse>, Malformed> {
    let (mut input, mut reader) = (BytesMut::new(), ResponseReader::new(method));
    let mut response: Option<ReceivedResponse> = None;
    let (mut body, mut trailers) = (Vec::new(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        if response.is_none() {
            response = reader.read(&mut input)?;
        }
        while let Some(response) = &mut response
            && let Some(piece) = response.body.decode(&mut input)?
        {
            match piece {
                Piece::Data(data) => body.extend_from_slice(&data),
                Piece::Trailers(map) => trailers = Some(map),
            }
        }
    }
    // The connection is closed.
    let whole = response.filter(|response| response.body.is_done() || response.body.is_until_close());
    Ok(whole.map(|response| ParsedResponse {
        status: response.head.status(),
        body,
        trailers,
        persistent: response.persistent,
        rest: input.freeze(),
    }))
}

/// Reads a text at once and byte by byte, with the same result.
fn read_at_once_and_bytewise(method: &Method, text: &str) -> Result<Option<ParsedResponse>, Malformed> {
    let whole = read(method, std::iter::once(text.as_bytes()));
    let pieces = read(method, text.as_bytes().chunks(1));
    assert_eq!(whole, pieces, "{text}");
    whole
}

#[test]
fn a_101_needs_an_upgrade_request() {
    let switch = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nx";
    assert!(read_at_once_and_bytewise(&Method::GET, switch).unwrap_err().to_string().contains("did not ask"));
    let mut input = BytesMut::from(switch);
    let response = ResponseReader::new(&Method::GET).switching(true).read(&mut input).unwrap().unwrap();
    assert!(response.body.is_done() && !response.persistent);
    assert_eq!((response.head.status(), &input[..]), (StatusCode::SWITCHING_PROTOCOLS, &b"x"[..]));

    let said = |fields: &[(HeaderName, &'static str)]| {
        let fields = fields.iter().map(|(name, value)| (name.clone(), http::HeaderValue::from_static(value)));
        requests_upgrade(&fields.collect::<HeaderMap>())
    };
    let [connection, upgrade] = [(header::CONNECTION, "close, Upgrade"), (header::UPGRADE, "x")];
    assert!(said(&[connection.clone(), upgrade.clone()]));
    assert!(!said(&[connection]) && !said(&[upgrade]));
}

#[test]
fn a_body_ends_as_its_headers_declare() {
    let get = &Method::GET;
    for (method, text, body, persistent, rest) in [
        (get, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nteaHTTP", "tea", true, "HTTP"),
        (get, "HTTP/1.1 200\r\nContent-Length: 3, 3\r\ncontent-length: 3\r\n\r\ntea", "tea", true, ""),
        (get, "HTTP/1.1 200 OK\r\n\r\ntea and more", "tea and more", false, ""),
        (get, "HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\ntea", "", true, "tea"),
        (get, "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n", "", true, ""),
        (&Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", "", true, ""),
        (&Method::CONNECT, "HTTP/1.1 200 OK\r\n\r\ntunnel", "", false, "tunnel"),
        (
            get,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "",
            true,
            "",
        ),
        (get, "HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\ntea", "tea", false, ""),
        (get, "HTTP/1.0 200 OK\r\ncontent-length: 3\r\nConnection: Keep-Alive\r\n\r\ntea", "tea", true, ""),
        (
            get,
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: x, Close\r\nconnection: keep-alive\r\n\r\ntea",
            "tea",
            false,
            "",
        ),
        (
            get,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2;x=y\r\nte\r\n01 \t;\r\na\r\n0\r\n\r\nHTTP",
            "tea",
            true,
            "HTTP",
        ),
    ] {
        let read = read_at_once_and_bytewise(method, text).unwrap().unwrap();
        assert_eq!(
            (&read.body[..], read.persistent, &read.rest[..]),
            (body.as_bytes(), persistent, rest.as_bytes()),
            "{text}"
        );
    }
}

#[test]
fn trailers_come_after_the_body() {
    let text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nA\r\n0123456789\r\n00\r\nx-sum: 1\r\nX-Sum:2\r\n\r\nrest";
    let read = read_at_once_and_bytewise(&Method::GET, text).unwrap().unwrap();
    let sums = read.trailers.as_ref().unwrap().get_all("x-sum").iter();
    let sums: Vec<_> = sums.map(|sum| sum.to_str().unwrap()).collect();
    assert_eq!(
        (&read.body[..], &sums[..], &read.rest[..]),
        (&b"0123456789"[..], &["1", "2"][..], &b"rest"[..])
    );
}

#[test]
fn spaces_before_colons_are_removed_from_responses() {
    let text = "HTTP/1.1 200 OK\r\nX-A : b\r\ncontent-length\t: 3\r\n\r\ntea";
    let mut input = BytesMut::from(text);
    let read = ResponseReader::new(&Method::GET).read(&mut input).unwrap().unwrap();
    assert_eq!((&read.head.headers()["x-a"], read.body.left()), (&HeaderValue::from_static("b"), Some(3)));
}

#[test]
fn equal_lengths_become_one() {
    for lengths in ["3\r\ncontent-length: 3", "3, 3", "3,3,3", "03"] {
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {lengths}\r\n\r\ntea");
        for method in [Method::GET, Method::HEAD] {
            let read = ResponseReader::new(&method).read(&mut BytesMut::from(&text[..])).unwrap().unwrap();
            let length: Vec<_> = read.head.headers().get_all("content-length").iter().collect();
            let expected = if lengths == "03" { "03" } else { "3" };
            assert_eq!(length, [expected], "{method} {lengths}");
        }
    }
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n";
    let read = ResponseReader::new(&Method::HEAD).read(&mut BytesMut::from(text)).unwrap().unwrap();
    assert!(!read.head.headers().contains_key("content-length"), "it frames nothing");
}

#[test]
fn ambiguous_responses_are_rejected() {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n3\r\ntea\r\n0\r\n\r\n");
    let chunked = |body: &str| format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    for text in [
        head("content-length: 3\r\ntransfer-encoding: chunked"),
        head("content-length: 3\r\ncontent-length: 4"),
        head("content-length: 3, 4"),
        head("content-length: 3,"),
        head("content-length: +3"),
        head("content-length:"),
        head("content-length: 18446744073709551616"),
        head("transfer-encoding: gzip, chunked"),
        head("transfer-encoding: chunked\r\ntransfer-encoding: chunked"),
        head("transfer-encoding: identity"),
        head("x: 1\r\n y: 2"),
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".into(),
        "HTTP/1.1 099 Low\r\n\r\n".into(),
        "HTTP/2.0 200 OK\r\n\r\n".into(),
        "SSH-2.0-OpenSSH_9.6\r\n\r\n".into(),
        chunked("many\r\n"),
        chunked("\r\n"),
        chunked(" 3\r\ntea\r\n"),
        chunked("3 3\r\n"),
        chunked("3\ntea\r\n0\r\n\r\n"),
        chunked("0x3\r\ntea\r\n"),
        chunked("3\r\nteapot\r\n"),
        chunked("3\r\ntea\n0\r\n\r\n"),
        chunked("10000000000000000\r\n"),
        chunked("3;a\nb\r\ntea\r\n"),
        chunked("0\r\na: b\nc: d\r\n\r\n"),
        chunked("0\r\nno field\r\n\r\n"),
    ] {
        assert!(read_at_once_and_bytewise(&Method::GET, &text).is_err(), "{text}");
    }
}

#[test]
fn malformed_chunks_fail_with_the_headers() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (chunks, is_broken) in [
        ("zz\r\n", true),
        ("3\r\nteaX", true),
        ("3\r\ntea\r\n3\r\ntea\r\n3;x\n", true),
        ("0\r\nno field\r\n\r\n", true),
        ("", false),
        ("3\r\nte", false),
        ("3\r\ntea\r", false),
        ("3;x=y\r\ntea\r\n0\r\n", false),
        ("0\r\n\r\nzz", false),
        ("0\r\na: b\r\n\r\nzz", false),
    ] {
        let mut input = BytesMut::from(&format!("{head}{chunks}")[..]);
        let read = ResponseReader::new(&Method::GET).read(&mut input);
        assert_eq!(read.is_err(), is_broken, "{chunks:?}");
        assert!(is_broken || input == chunks, "nothing of it is taken: {chunks:?}");
    }
}

#[test]
fn later_versions_of_http1_are_read_as_1_1() {
    for (version, is_read) in
        [("1.1", true), ("1.2", true), ("1.9", true), ("1.20", false), ("2.0", false), ("0.9", false)]
    {
        let text = format!("\r\nHTTP/{version} 200 OK\r\ncontent-length: 3\r\n\r\ntea");
        match read_at_once_and_bytewise(&Method::GET, &text) {
            Ok(read) => assert!(is_read && read.unwrap().persistent, "{version}"),
            Err(why) => assert!(!is_read, "{version}: {why}"),
        }
        let text = format!("\r\nGET /a HTTP/{version}\r\n\r\n");
        for size in [1, text.len()] {
            let (requests, why) = receive(text.as_bytes().chunks(size));
            assert_eq!((requests.len(), why.is_none()), (usize::from(is_read), is_read), "{version}");
        }
    }
}

#[test]
fn a_length_fits_a_signed_number() {
    for (length, is_read) in [("9223372036854775807", true), ("9223372036854775808", false)] {
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let read = ResponseReader::new(&Method::GET).read(&mut BytesMut::from(&response[..]));
        assert_eq!(read.is_ok(), is_read, "{length}");
        let request = format!("POST / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n");
        let read = RequestReader::default().read(&mut BytesMut::from(&request[..]));
        assert_eq!(read.is_ok(), is_read, "{length}");
    }
}

#[test]
fn informational_responses_are_delivered_except_100() {
    use std::cell::RefCell;
    thread_local! {
        static INFORMED: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
    }
    let note = |response: http::Response<()>| {
        INFORMED.with_borrow_mut(|informed| informed.push(response.status().as_u16()));
    };
    let begun = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n";
    let mut input = BytesMut::from(&format!("{begun}HTTP/1.1 204 No Content\r\n\r\n")[..]);
    let response = ResponseReader::new(&Method::GET).informing(note).read(&mut input).unwrap().unwrap();
    assert_eq!((response.head.status(), INFORMED.take()), (StatusCode::NO_CONTENT, vec![102, 103]));
    let mut out = Vec::new();
    let headers = HeaderMap::from_iter([(header::LINK, http::HeaderValue::from_static("a"))]);
    write_informational(&mut out, StatusCode::EARLY_HINTS, &headers);
    assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n");
}

#[test]
fn truncated_response_is_incomplete() {
    for text in [
        "HTTP/1.1 200 O",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nte",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\ntea\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\ntea\r\n0\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\r\n",
    ] {
        assert_eq!(read_at_once_and_bytewise(&Method::GET, text), Ok(None), "{text}");
    }
}

#[test]
fn response_sizes_are_bounded() {
    let refused = |text: String| read(&Method::GET, text.as_bytes().chunks(1000)).unwrap_err().0.to_owned();
    let head = "HTTP/1.1 200 OK\r\n";
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    assert!(refused(format!("{head}x: {}", "y".repeat(70_000))).contains("64 KiB"));
    assert!(refused(format!("{head}x: {}\r\n\r\n", "y".repeat(65_530))).contains("64 KiB"));
    let many = "x: y\r\n".repeat(129);
    assert!(refused(format!("{head}{many}\r\n")).contains("128 headers"));
    assert!(refused("HTTP/1.1 100 Continue\r\n\r\n".repeat(40)).contains("1xx"));
    let hints = format!("HTTP/1.1 103 Hints\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    assert!(refused(hints.repeat(4)).contains("1xx"));
    assert!(refused(format!("{chunked}1;{}", "x".repeat(17_000))).contains("16 KiB"));
    assert!(refused(format!("{chunked}{}", "1;xxxxxxxx\r\na\r\n".repeat(3_000))).contains("16 KiB"));
    assert!(refused(format!("{chunked}0\r\nx: {}", "y".repeat(70_000))).contains("64 KiB"));
    assert!(refused(format!("{chunked}0\r\n{}\r\n", "x: y\r\n".repeat(129))).contains("trailers"));
    let full = format!("{head}content-length: 0\r\n{}\r\n", "x: y\r\n".repeat(127));
    assert!(read(&Method::GET, full.as_bytes().chunks(7)).unwrap().is_some());
}

fn head(method: &Method, path: &str, headers: &HeaderMap, own: &[HeaderName], framing: Framing) -> String {
    let mut out = Vec::new();
    begin_request(&mut out, method, path, b"cart.shop");
    for name in own {
        write_number(&mut out, name, u64::MAX);
    }
    write_fields(&mut out, headers, own);
    end_headers(&mut out, framing);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_request_is_framed_by_its_body_not_its_headers() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "other"),
        ("content-length", "7"),
        ("transfer-encoding", "chunked"),
        ("x-time", "1"),
        ("te", "trailers"),
    ] {
        headers.append(name, value.parse().unwrap());
    }
    let own = [HeaderName::from_static("x-time")];
    let begun = "host: cart.shop\r\nx-time: 18446744073709551615\r\nte: trailers\r\n";
    for (method, length, line) in [
        (Method::POST, Some(3), "content-length: 3\r\n"),
        (Method::POST, Some(0), "content-length: 0\r\n"),
        (Method::GET, Some(0), ""),
        (Method::POST, None, "content-length: 7\r\n"),
    ] {
        let framing = Framing::of(&method, &headers, length).unwrap();
        let written = head(&method, "/a?b", &headers, &own, framing);
        assert_eq!(written, format!("{method} /a?b HTTP/1.1\r\n{begun}{line}\r\n"));
    }
    headers.append(header::CONTENT_LENGTH, 8.into());
    let framing = Framing::of(&Method::POST, &headers, None).unwrap();
    assert_eq!(framing, Framing::Chunked, "two differing lengths are ignored");
    assert!(
        head(&Method::OPTIONS, "*", &headers, &own, framing)
            .contains("te: trailers\r\ntransfer-encoding: chunked\r\n\r\n")
    );
    headers.append(header::TRANSFER_ENCODING, "gzip".parse().unwrap());
    assert!(Framing::of(&Method::POST, &headers, Some(3)).is_err(), "an unsupported transfer coding");
}

#[test]
fn a_body_of_wrong_length_is_an_error() {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(Framing::Length(5));
    assert_eq!(encoder.data(3, false, &mut out).unwrap(), b"");
    assert!(matches!(encoder.end(&HeaderMap::new(), &mut out), Err(WrongLength::Shorter(2))));
    let mut encoder = Encoder::new(Framing::Length(5));
    assert!(matches!(encoder.data(6, false, &mut out), Err(WrongLength::Longer)));
    assert!(Encoder::new(Framing::Length(0)).is_done() && out.is_empty());
}

#[test]
fn chunks_and_trailers_round_trip() {
    let mut encoder = Encoder::new(Framing::Chunked);
    let mut out = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for size in [1, 15, 16, 4096] {
        let tail = encoder.data(size, false, &mut out).unwrap();
        out.resize(out.len() + size, b'x');
        out.extend_from_slice(tail);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", 7.into());
    trailers.insert(header::CONTENT_LENGTH, 9.into());
    encoder.end(&trailers, &mut out).unwrap();
    trailers.remove(header::CONTENT_LENGTH);
    let read = read_at_once_and_bytewise(&Method::GET, std::str::from_utf8(&out).unwrap()).unwrap().unwrap();
    assert_eq!(
        (read.body.len(), read.trailers, encoder.is_done()),
        (1 + 15 + 16 + 4096, Some(trailers), true)
    );

    let mut encoder = Encoder::new(Framing::Chunked);
    assert_eq!((encoder.data(3, true, &mut out).unwrap(), encoder.is_done()), (&b"\r\n0\r\n\r\n"[..], true));
}

/// Reads all bytes of a client: the requests, and the error that ended it.
fn receive<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, Option<RequestError>) {
    let (mut input, mut reader) = (BytesMut::new(), RequestReader::default());
    let (mut requests, mut current) = (Vec::new(), None::<(ReceivedRequest, Vec<u8>)>);
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let Some((received, body)) = &mut current else {
                match reader.read(&mut input) {
                    Ok(Some(received)) => current = Some((received, Vec::new())),
                    Ok(None) => break,
                    Err(why) => return (requests, Some(why)),
                }
                continue;
            };
            match received.body.decode(&mut input) {
                Ok(Some(Piece::Data(data))) => body.extend_from_slice(&data),
                Ok(Some(Piece::Trailers(_))) => {}
                Ok(None) if received.body.is_done() => {
                    let ReceivedRequest { head, persistent, expects_continue, .. } = received;
                    let body = String::from_utf8_lossy(body);
                    let goes_on = if *persistent { "stays" } else { "closes" };
                    let waits = if *expects_continue { " waits" } else { "" };
                    requests.push(format!("{} {} {body} {goes_on}{waits}", head.method(), head.uri()));
                    current = None;
                }
                Ok(None) => break,
                Err(_) => return (requests, None),
            }
        }
    }
    (requests, None)
}

/// At once and byte by byte, with the same result.
fn receive_at_once_and_bytewise(text: &str) -> (Vec<String>, Option<RequestError>) {
    let whole = receive(std::iter::once(text.as_bytes()));
    assert_eq!(whole, receive(text.as_bytes().chunks(1)), "{text}");
    whole
}

#[test]
fn requests_end_as_their_headers_declare() {
    for (text, requests) in [
        (
            "GET /a HTTP/1.1\r\n\r\nGET http://x.y/b?c HTTP/1.1\r\n\r\n",
            &["GET /a  stays", "GET http://x.y/b?c  stays"][..],
        ),
        (
            "\r\n\nPOST / HTTP/1.1\r\ncontent-length: 3\r\nContent-Length: 3\r\n\r\nteaGET",
            &["POST / tea stays"],
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n3\r\ntea\r\n0\r\nx: y\r\n\r\n",
            &["POST / tea stays"],
        ),
        (
            "GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\nconnection: x, Keep-Alive\r\n\r\n",
            &["GET /  closes", "GET /  stays"],
        ),
        ("GET / HTTP/1.1\r\nconnection: Close\r\nconnection: keep-alive\r\n\r\n", &["GET /  closes"]),
        ("PUT / HTTP/1.1\r\nexpect: 100-Continue\r\ncontent-length: 1\r\n\r\nx", &["PUT / x stays waits"]),
        ("PUT / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 0\r\n\r\n", &["PUT /  stays"]),
        ("PUT / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx", &["PUT / x closes"]),
        ("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", &["OPTIONS *  stays"]),
    ] {
        let (read, why) = receive_at_once_and_bytewise(text);
        assert_eq!(
            (&read[..], why),
            (&requests.iter().map(ToString::to_string).collect::<Vec<_>>()[..], None),
            "{text}"
        );
    }
}

#[test]
fn ambiguous_requests_are_rejected() {
    let with = |fields: &str| format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n3\r\ntea\r\n0\r\n\r\n");
    for (text, status) in [
        (with("content-length: 3\r\ntransfer-encoding: chunked"), 400),
        (with("transfer-encoding: chunked\r\ncontent-length: 3"), 400),
        (with("content-length: 3\r\ncontent-length: 4"), 400),
        (with("content-length: 3, 3"), 400),
        (with("content-length: +3"), 400),
        (with("content-length:"), 400),
        (with("content-length: 18446744073709551616"), 400),
        (with("transfer-encoding: gzip, chunked"), 501),
        (with("transfer-encoding: chunked, identity"), 501),
        (with("transfer-encoding: chunked\r\ntransfer-encoding: chunked"), 501),
        (with("transfer-encoding:\x0bchunked"), 400),
        (with("host: a\r\nhost: a"), 400),
        (with("content-length : 3"), 400),
        (with("x: 1\r\n y: 2"), 400),
        (with("x: a\0b"), 400),
        ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n".into(), 400),
        ("GET / HTTP/2.0\r\n\r\n".into(), 400),
        ("GET  / HTTP/1.1\r\n\r\n".into(), 400),
        ("GET /a b HTTP/1.1\r\n\r\n".into(), 400),
        ("G(T / HTTP/1.1\r\n\r\n".into(), 400),
        ("\x16\x03\x01\x02\0\x01".into(), 400),
    ] {
        let (requests, why) = receive_at_once_and_bytewise(&text);
        let Some(RequestError::Refused { status: told, .. }) = why else {
            panic!("{text}: {requests:?} {why:?}")
        };
        assert_eq!((told.as_u16(), requests.len()), (status, 0), "{text}");
    }
}

#[test]
fn an_http2_preface_is_not_consumed() {
    let text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nx";
    let mut input = BytesMut::from(text);
    assert_eq!(RequestReader::default().read(&mut input).unwrap_err(), RequestError::Http2);
    assert_eq!(input, text);
    // Not after a request over HTTP/1.1.
    let (requests, why) =
        receive_at_once_and_bytewise("GET / HTTP/1.1\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(requests.len() == 1 && matches!(why, Some(RequestError::Refused { .. })), "{requests:?} {why:?}");
}

#[test]
fn connect_and_upgrade_may_switch_protocols() {
    let upgrade = |version, connection| {
        format!("GET / HTTP/1.{version}\r\nuPgrade: x\r\nconnection: {connection}\r\n\r\n")
    };
    for (text, may_switch) in [
        ("CONNECT a:1 HTTP/1.1\r\n\r\n".to_owned(), true),
        ("CONNECT a:1 HTTP/1.0\r\ncontent-length: 0\r\n\r\n".to_owned(), true),
        (upgrade(1, "keep-alive, UPGRADE"), true),
        (upgrade(0, "upgrade"), false),
        // Not of this connection.
        (upgrade(1, "keep-alive"), false),
        ("GET / HTTP/1.1\r\nconnection: upgrade\r\n\r\n".to_owned(), false),
    ] {
        let mut input = BytesMut::from(format!("{text}x").as_str());
        let received = RequestReader::default().read(&mut input).unwrap().unwrap();
        assert_eq!((received.may_switch, &input[..]), (may_switch, &b"x"[..]), "{text}");
    }
    for body in ["content-length: 1", "transfer-encoding: chunked"] {
        let (requests, why) =
            receive_at_once_and_bytewise(&format!("CONNECT a:1 HTTP/1.1\r\n{body}\r\n\r\n0\r\n\r\n"));
        let Some(RequestError::Refused { why, .. }) = why else { panic!("{requests:?}") };
        assert_eq!((requests.len(), why), (0, "a CONNECT with a body"));
    }
}

#[test]
fn request_headers_are_bounded() {
    let begun = "GET / HTTP/1.1\r\n";
    for text in [
        format!("{begun}x: {}", "y".repeat(70_000)),
        format!("{begun}x: {}\r\n\r\n", "y".repeat(65_530)),
        format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(70_000)),
        format!("{begun}{}\r\n", "x: y\r\n".repeat(129)),
        "\r\n".repeat(40_000),
    ] {
        let (requests, why) = receive(text.as_bytes().chunks(1000));
        let Some(RequestError::Refused { status, .. }) = why else { panic!("{requests:?} {why:?}") };
        assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let full = format!("{begun}{}\r\n", "x: y\r\n".repeat(128));
    assert_eq!(receive(full.as_bytes().chunks(7)).0.len(), 1);
}

#[test]
fn a_response_is_framed_for_the_version_of_its_client() {
    let headers = HeaderMap::from_iter([
        (header::CONTENT_LENGTH, http::HeaderValue::from_static("7")),
        (header::TRANSFER_ENCODING, http::HeaderValue::from_static("gzip")),
        (header::SERVER, http::HeaderValue::from_static("x")),
    ]);
    let none = HeaderMap::new();
    let context = |method: &str, version: Version| {
        ResponseContext::of(&http::Request::builder().method(method).version(version).body(()).unwrap())
    };
    let new = |method| context(method, Version::HTTP_11);
    let old = context("GET", Version::HTTP_10);
    let date = || *b"Thu, 01 Jan 1970 00:00:00 GMT";
    for (status, headers, context, length, persistent, lines, framing) in [
        (200, &headers, new("GET"), Some(3), true, "content-length: 3", Framing::Length(3)),
        (200, &headers, new("GET"), None, true, "content-length: 7", Framing::Length(7)),
        (200, &none, new("GET"), None, true, "transfer-encoding: chunked", Framing::Chunked),
        (200, &none, new("GET"), Some(0), false, "connection: close\r\ncontent-length: 0", Framing::Absent),
        (200, &none, old, None, true, "", Framing::UntilClose),
        (200, &none, old, Some(3), true, "connection: keep-alive\r\ncontent-length: 3", Framing::Length(3)),
        (200, &headers, new("HEAD"), Some(0), true, "content-length: 7", Framing::Absent),
        (204, &headers, new("GET"), Some(0), true, "", Framing::Absent),
        (304, &headers, new("HEAD"), Some(0), true, "", Framing::Absent),
        (101, &headers, new("GET"), Some(0), false, "connection: upgrade", Framing::Absent),
        (200, &headers, new("CONNECT"), Some(3), false, "", Framing::Absent),
        (
            403,
            &none,
            new("CONNECT"),
            Some(3),
            false,
            "connection: close\r\ncontent-length: 3",
            Framing::Length(3),
        ),
    ] {
        let mut out = Vec::new();
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(write_response(&mut out, (status, headers), context, (length, persistent), date), framing);
        let text = String::from_utf8(out).unwrap();
        let told: Vec<_> = text
            .split("\r\n")
            .skip(1)
            .filter(|line| !line.starts_with("server") && !line.starts_with("date"))
            .collect();
        assert_eq!(told.join("\r\n").trim_end(), lines, "{text}");
    }
}

#[test]
fn split_cookies_become_one_field() {
    let mut headers: HeaderMap = [(header::COOKIE, HeaderValue::from_static("a=1"))].into_iter().collect();
    join_cookies(&mut headers);
    assert_eq!(headers[header::COOKIE], "a=1");
    headers.append(header::COOKIE, HeaderValue::from_static("b=2; c=3"));
    join_cookies(&mut headers);
    assert_eq!(headers.get_all(header::COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
}
