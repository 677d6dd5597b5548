//! Responses, as a client parses them.

use super::*;

#[test]
fn status_101_without_upgrade_request_is_rejected() {
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
fn response_body_ends_where_its_headers_declare() {
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
fn response_trailers_are_returned_after_body() {
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
fn spaces_before_colons_of_response_headers_are_removed() {
    let text = "HTTP/1.1 200 OK\r\nX-A : b\r\ncontent-length\t: 3\r\n\r\ntea";
    let mut input = BytesMut::from(text);
    let read = ResponseReader::new(&Method::GET).read(&mut input).unwrap().unwrap();
    assert_eq!((&read.head.headers()["x-a"], read.body.left()), (&HeaderValue::from_static("b"), Some(3)));
}

#[test]
fn repeated_equal_content_lengths_are_merged() {
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
fn responses_with_ambiguous_framing_are_rejected() {
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
fn malformed_chunks_fail_response_together_with_headers() {
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
fn responses_of_later_http1_versions_are_read_as_1_1() {
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
fn content_length_beyond_signed_64_bit_range_is_rejected() {
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
fn truncated_http1_response_is_reported_incomplete() {
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
fn oversized_responses_are_rejected() {
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
