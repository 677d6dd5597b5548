//! Informational responses (RFC 9110, 15.2) are forwarded as they arrive, for any versions of HTTP.

use std::process::Stdio;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    time::timeout,
};

use super::{Endpoint, OK, response};
use crate::harness::{
    PATIENCE, Proxy, RawServer, World, beside_others,
    h2::{DATA, END_HEADERS, END_STREAM, HEADERS, frame},
    read_head, read_to_end, say,
};

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nconnection: x-own\r\nx-own: 1\r\n\r\n";
const LINK: Option<&str> = Some("</a.css>");
const TEA: &str = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea";

/// A curl process and its output, with headers printed as they arrive (`-D -`).
struct Curl {
    child: Child,
    printed: String,
}

impl Curl {
    fn get(proxy: &Proxy, host: &str, args: &[&str]) -> Self {
        let (host, url) = (format!("Host: {host}"), format!("http://{}/", proxy.by_host));
        let mut command = Command::new("curl");
        command.args(["-sSN", "-D", "-", "--max-time", "20", "-H", &host]).args(args).arg(url).env_clear();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        Self { child, printed: String::new() }
    }

    /// Waits until the output contains `words`.
    async fn prints(&mut self, words: &str) {
        let out = self.child.stdout.as_mut().unwrap();
        let mut piece = [0; 4096];
        while !self.printed.contains(words) {
            let read = timeout(PATIENCE, out.read(&mut piece)).await.expect("nothing comes").unwrap();
            assert!(read > 0, "no {words:?} in {:?}", self.printed);
            self.printed.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }

    /// Waits until curl has succeeded; returns all output in lower case.
    async fn ends(mut self) -> String {
        let out = self.child.stdout.as_mut().unwrap();
        let mut rest = String::new();
        timeout(PATIENCE, out.read_to_string(&mut rest)).await.expect("it goes on").unwrap();
        assert!(self.child.wait().await.unwrap().success(), "{}{rest}", self.printed);
        (self.printed + &rest).to_ascii_lowercase()
    }
}

/// Clients whose messages are forwarded unparsed, parsed, and over HTTP/2.
const CLIENTS: [&[&str]; 3] =
    [&["--http1.1"], &["--http1.1", "-H", "te: trailers"], &["--http2-prior-knowledge"]];

#[track_caller]
fn comes_before_the_tea(printed: &str) {
    let (hints, tea) = printed.split_once("\r\n\r\n").unwrap();
    assert!(hints.contains(" 103") && hints.contains("\r\nlink: </a.css>"), "{printed}");
    assert!(!hints.contains("x-own") && !hints.contains("connection"), "{printed}");
    assert!(tea.starts_with("http/") && tea.contains(" 200") && tea.ends_with("\r\n\r\ntea"), "{printed}");
    assert!(!tea.contains("link:"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_hints_arrive_before_response_over_every_http_version() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let mut two = Endpoint::start(&world, "shop/two", "two").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    // A connection to the server exists, so that messages can be forwarded unparsed.
    let first = Curl::get(&proxy, "one.shop", CLIENTS[0]);
    let mut served = one.accept().await;
    read_head(&mut served).await;
    served.write_all(TEA.as_bytes()).await.unwrap();
    first.ends().await;
    for client in CLIENTS {
        let mut curl = Curl::get(&proxy, "one.shop", client);
        read_head(&mut served).await;
        served.write_all(HINTS.as_bytes()).await.unwrap();
        curl.prints("</a.css>").await;
        served.write_all(TEA.as_bytes()).await.unwrap();
        comes_before_the_tea(&curl.ends().await);

        let mut curl = Curl::get(&proxy, "two.shop", client);
        let (_, of) = two.request().await;
        two.send(&response(of, "103", LINK, 0)).await;
        curl.prints("</a.css>").await;
        let tea = [frame(HEADERS, END_HEADERS, of, OK), frame(DATA, END_STREAM, of, b"tea")];
        two.send(&tea.concat()).await;
        comes_before_the_tea(&curl.ends().await);
    }
    // All responses arrive at once, and hop-by-hop headers are not forwarded.
    for client in CLIENTS {
        let curl = Curl::get(&proxy, "one.shop", client);
        read_head(&mut served).await;
        let all = ["HTTP/1.1 100 Continue\r\n\r\n", HINTS, TEA].concat();
        served.write_all(all.as_bytes()).await.unwrap();
        comes_before_the_tea(&curl.ends().await);
    }
    // HTTP/1.0 has no informational responses.
    let mut program = say(&proxy.for_one, "GET / HTTP/1.0\r\nhost: one.shop\r\n\r\n").await;
    read_head(&mut served).await;
    served.write_all([HINTS, TEA].concat().as_bytes()).await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut program).await).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 ") && !answer.contains(" 103 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_informational_responses_fail_only_their_call() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let mut two = Endpoint::start(&world, "shop/two", "two").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    for (count, status) in [(32, " 200 "), (33, " 502 ")] {
        for (host, is_one) in [("one.shop", true), ("two.shop", false)] {
            let request = format!("POST / HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
            let mut program = say(&proxy.by_host, request).await;
            let served = match is_one {
                true => {
                    let mut served = one.accept().await;
                    read_head(&mut served).await;
                    served.write_all(format!("{}{TEA}", HINTS.repeat(count)).as_bytes()).await.unwrap();
                    Some(served)
                }
                false => {
                    let (_, of) = two.request().await;
                    two.send(&response(of, "103", LINK, 0).repeat(count)).await;
                    two.responds(of, "200").await;
                    None
                }
            };
            let mut hints = 0;
            let answer = loop {
                let answer = read_head(&mut program).await;
                match answer.starts_with("http/1.1 103 ") {
                    true => hints += 1,
                    false => break answer,
                }
            };
            assert!(answer.contains(status) && hints <= 32, "{count} {host}: {hints} and {answer}");
            drop(served);
        }
    }
}
