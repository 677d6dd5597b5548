//! Requests and responses: a table of the request, the message at the program, and the response at the client.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use super::forms::Forms;

/// A curl request and its response, in lower case. The response repeats the request that the program received.
struct Exchange {
    target: &'static str,
    /// Arguments of curl.
    options: &'static [&'static str],
    /// Restricts the exchange to HTTP/1.1 or HTTP/2; both by default.
    only: Option<&'static str>,
    contains: &'static [&'static str],
    lacks: &'static [&'static str],
}

const HTTP1: &str = "--http1.1";
const HTTP2: &str = "--http2-prior-knowledge";

const EXCHANGE: Exchange = Exchange { target: "/", options: &[], only: None, contains: &[], lacks: &[] };

const EXCHANGES: &[Exchange] = &[
    Exchange { target: "/?q={\"a\":1}<b>", contains: &["get /?q={\"a\":1}<b> http/1.1\r\n"], ..EXCHANGE },
    Exchange {
        target: "/a//b/%2e%2E/?x=%00",
        contains: &["get /a//b/%2e%2e/?x=%00 http/1.1\r\n"],
        ..EXCHANGE
    },
    Exchange {
        options: &["-H", "host: cart.example:81"],
        contains: &["host: cart.example:81\r\n"],
        ..EXCHANGE
    },
    Exchange {
        options: &["-H", "cookie: a=1", "-H", "cookie: b=2"],
        only: Some(HTTP2),
        contains: &["cookie: a=1; b=2\r\n"],
        ..EXCHANGE
    },
    Exchange {
        options: &["-H", "connection: x-hop", "-H", "x-hop: 1", "-H", "te: trailers", "-H", "x-end: 1"],
        only: Some(HTTP1),
        contains: &["te: trailers\r\n", "x-end: 1\r\n"],
        lacks: &["x-hop"],
        ..EXCHANGE
    },
    Exchange {
        options: &["--data", "tea"],
        contains: &["post / ", "content-length: 3\r\n", "[tea]"],
        ..EXCHANGE
    },
    Exchange {
        options: &["--data", "tea", "-H", "expect: 100-continue"],
        only: Some(HTTP1),
        contains: &["http/1.1 100 continue\r\n", "[tea]"],
        lacks: &["expect"],
        ..EXCHANGE
    },
    Exchange {
        options: &["--data", "tea", "-H", "transfer-encoding: chunked"],
        only: Some(HTTP1),
        contains: &["[tea]"],
        ..EXCHANGE
    },
    Exchange { options: &["--head"], contains: &["content-length: "], lacks: &["head /"], ..EXCHANGE },
    Exchange {
        options: &["-H", "x-fairmesh-deadline: 9000"],
        contains: &["x-fairmesh-deadline: "],
        ..EXCHANGE
    },
    Exchange { target: "/early-hints", contains: &[" 103", "link: </a.css>", " 200", "tea"], ..EXCHANGE },
    Exchange {
        target: "/trailers",
        options: &["-H", "te: trailers"],
        contains: &["x-sum: 7", "tea"],
        ..EXCHANGE
    },
    Exchange {
        target: "/equal-lengths",
        contains: &["content-length: 3\r\n", "tea"],
        lacks: &["3, 3", "3\r\ncontent-length"],
        ..EXCHANGE
    },
    Exchange { target: "/different-lengths", contains: &[" 502", "x-fairmesh-fault: protocol"], ..EXCHANGE },
    Exchange { target: "/no-content", contains: &[" 204"], lacks: &["content-length"], ..EXCHANGE },
    Exchange { target: "/hop-by-hop", contains: &["tea"], lacks: &["x-hop", "keep-alive"], ..EXCHANGE },
    Exchange { target: "/until-close", contains: &[" 200", "tea"], ..EXCHANGE },
    Exchange {
        target: "/load",
        contains: &["cpu_utilization=0.821"],
        lacks: &["cpu_utilization=0.0"],
        ..EXCHANGE
    },
    Exchange {
        target: "/gone",
        options: &["--data", "tea"],
        contains: &[" 502", "x-fairmesh-fault: reset"],
        ..EXCHANGE
    },
];

/// curl's response in lower case, with headers, informational responses and trailers.
pub(super) fn curl(to: &str, options: &[&str], target: &str) -> String {
    let output = Command::new("curl")
        .args(["-sS", "-i", "--globoff", "--path-as-is", "--max-time", "20"])
        .args(options)
        .arg(format!("http://{to}{target}"))
        .output()
        .expect("this test needs curl");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).to_lowercase()
}

fn every_exchange_is_the_same(forms: &Forms) {
    for form in &forms.forms {
        for exchange in EXCHANGES {
            for version in [HTTP1, HTTP2] {
                if exchange.only.is_some_and(|only| only != version) {
                    continue;
                }
                let got = curl(&form.address, &[&[version], exchange.options].concat(), exchange.target);
                let case = format!("{}, {version}, {} {:?}", form.name, exchange.target, exchange.options);
                for expected in exchange.contains {
                    assert!(got.contains(expected), "{case}: no {expected:?} in\n{got}");
                }
                for unexpected in exchange.lacks {
                    assert!(!got.contains(unexpected), "{case}: {unexpected:?} in\n{got}");
                }
            }
        }
    }
}

/// HTTP/1.1 requests byte by byte, with the expected status lines.
const REQUESTS: &[(&str, &[&str])] = &[
    (
        "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /no-content HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        &["200", "204"],
    ),
    ("GET http://a/ HTTP/1.1\r\nhost: b\r\nconnection: close\r\n\r\n", &["200"]),
    ("GET / HTTP/1.0\r\n\r\n", &["200"]),
    ("GET / HTTP/1.1\r\nconnection: close\r\n\r\n", &["400"]),
    ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n", &["400"]),
    ("GET / HTTP/1.1\r\nhost: a b\r\nconnection: close\r\n\r\n", &["400"]),
    ("GET / HTTP/1.1\r\nhost : a\r\n\r\n", &["400"]),
    ("GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", &["400"]),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\ntea", &["400"]),
    (
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        &["400"],
    ),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", &["501"]),
    (
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        &["501"],
    ),
    ("CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\nconnection: close\r\n\r\n", &["405"]),
];

/// Status codes of all responses on a connection with these bytes.
fn statuses(to: &str, request: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    // The connection may be reset after the response has been read.
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response).into_owned();
    // In a repeated request, the version is at the end of the line.
    let versions = response.split("HTTP/1.").skip(1).filter_map(|head| head.get(2..5));
    versions
        .filter(|status| status.bytes().all(|byte| byte.is_ascii_digit()))
        .map(ToOwned::to_owned)
        .collect()
}

fn every_request_gets_the_same_status(forms: &Forms) {
    for form in &forms.forms {
        for (request, expected) in REQUESTS {
            assert_eq!(statuses(&form.address, request), *expected, "{}: {request:?}", form.name);
        }
    }
}

#[test]
fn http_messages_over_plaintext_arrive_equal_by_each_proxy_path() {
    let forms = Forms::plain();
    every_exchange_is_the_same(&forms);
    every_request_gets_the_same_status(&forms);
}

#[test]
fn http_messages_over_mutual_tls_arrive_equal_by_each_proxy_path() {
    let forms = Forms::mutual_tls();
    every_exchange_is_the_same(&forms);
    every_request_gets_the_same_status(&forms);
}
