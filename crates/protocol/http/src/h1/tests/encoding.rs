//! Messages are written with correct framing.

use super::*;

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
fn http1_request_is_framed_by_its_body_not_its_headers() {
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
fn encoder_rejects_body_of_wrong_length() {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(Framing::Length(5));
    assert_eq!(encoder.data(3, false, &mut out).unwrap(), b"");
    assert!(matches!(encoder.end(&HeaderMap::new(), &mut out), Err(WrongLength::Shorter(2))));
    let mut encoder = Encoder::new(Framing::Length(5));
    assert!(matches!(encoder.data(6, false, &mut out), Err(WrongLength::Longer)));
    assert!(Encoder::new(Framing::Length(0)).is_done() && out.is_empty());
}

#[test]
fn http1_chunks_and_trailers_round_trip() {
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

#[test]
fn response_body_framing_matches_http_version_of_client() {
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
fn split_cookie_fields_are_joined_for_http1() {
    let mut headers: HeaderMap = [(header::COOKIE, HeaderValue::from_static("a=1"))].into_iter().collect();
    join_cookies(&mut headers);
    assert_eq!(headers[header::COOKIE], "a=1");
    headers.append(header::COOKIE, HeaderValue::from_static("b=2; c=3"));
    join_cookies(&mut headers);
    assert_eq!(headers.get_all(header::COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
}
