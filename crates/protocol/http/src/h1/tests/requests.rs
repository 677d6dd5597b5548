//! Requests, as a server parses them.

use super::*;

#[test]
fn request_body_ends_where_its_headers_declare() {
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
fn requests_with_ambiguous_framing_are_rejected() {
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
fn http1_parser_does_not_consume_http2_preface() {
    let text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nx";
    let mut input = BytesMut::from(text);
    assert_eq!(RequestReader::default().read(&mut input).unwrap_err(), RequestError::Http2);
    assert_eq!(input, text);
    // After an HTTP/1.1 request the preface is invalid.
    let (requests, why) =
        receive_at_once_and_bytewise("GET / HTTP/1.1\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(requests.len() == 1 && matches!(why, Some(RequestError::Refused { .. })), "{requests:?} {why:?}");
}

#[test]
fn connect_and_upgrade_requests_may_switch_protocols() {
    let upgrade = |version, connection| {
        format!("GET / HTTP/1.{version}\r\nuPgrade: x\r\nconnection: {connection}\r\n\r\n")
    };
    for (text, may_switch) in [
        ("CONNECT a:1 HTTP/1.1\r\n\r\n".to_owned(), true),
        ("CONNECT a:1 HTTP/1.0\r\ncontent-length: 0\r\n\r\n".to_owned(), true),
        (upgrade(1, "keep-alive, UPGRADE"), true),
        (upgrade(0, "upgrade"), false),
        // Without `upgrade` in `connection`, the `upgrade` header does not concern this connection.
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
fn oversized_request_headers_are_rejected() {
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
