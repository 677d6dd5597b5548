//! Many different concurrent requests, many of them cancelled at arbitrary moments. Every response must belong to its
//! request.

use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::{Protocol, arith::Generator};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, task::JoinSet, time::timeout};

use super::others_are_served;
use crate::harness::{Echo, NUMBER, PATIENCE, Proxy, World, beside_others};

/// Number of programs of each kind, and of requests per program.
const PROGRAMS: u64 = 4;
const REQUESTS: u64 = 150;
/// Concurrent requests on one HTTP/2 connection.
const AT_ONCE: u64 = 10;

/// Body of a request; no two requests share content.
fn body_of(number: u64, dice: &mut Generator) -> Bytes {
    let size = [3, 700, 20_000, 150_000][dice.below(4) as usize];
    Bytes::from(format!("{number:08x}").repeat(1 + size / 8))
}

fn request(to: &str, host: &str, number: u64, body: Bytes) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://{to}/")).header("host", host).header(NUMBER, number);
    request.body(Full::new(body)).unwrap()
}

/// Checks that a response, if one arrives before cancellation, belongs to the request. Returns whether it arrived.
async fn own<E: std::fmt::Debug>(
    sending: impl Future<Output = Result<http::Response<hyper::body::Incoming>, E>>,
    (number, body): (u64, Bytes),
    patience: Duration,
) -> bool {
    let answered = timeout(patience, async {
        let (head, answer) = sending.await.expect("only the program cancels a request").into_parts();
        assert_eq!(head.status, StatusCode::OK, "{head:?}");
        assert_eq!(head.headers[NUMBER], number.to_string(), "the answer to another request");
        assert!(answer.collect().await.unwrap().to_bytes() == body, "{number} got the body of another");
    });
    answered.await.is_ok()
}

/// Time until cancellation; a third of the requests get a short one.
fn patience(dice: &mut Generator) -> Duration {
    if dice.below(3) == 0 { Duration::from_micros(dice.below(5_000)) } else { PATIENCE }
}

/// Sequential HTTP/1.1 calls. A cancelled call is followed by a new connection.
async fn calls_by_http1(to: String, host: &'static str, seed: u64) -> u64 {
    let (mut dice, mut whole, mut kept) = (Generator::new(seed), 0, None);
    for number in seed..seed + REQUESTS {
        let mut sender = match kept.take() {
            Some(sender) => sender,
            None => {
                let stream = TokioIo::new(TcpStream::connect(&to).await.unwrap());
                let (sender, connection) = http1::handshake(stream).await.unwrap();
                tokio::spawn(connection);
                sender
            }
        };
        sender.ready().await.unwrap();
        let (body, patience) = (body_of(number, &mut dice), patience(&mut dice));
        let sending = sender.send_request(request(&to, host, number, body.clone()));
        if own(sending, (number, body), patience).await {
            whole += 1;
            kept = Some(sender);
        }
    }
    whole
}

/// Concurrent calls on one HTTP/2 connection. Cancelled calls reset their streams.
async fn calls_by_http2(to: String, host: &'static str, seed: u64) -> u64 {
    let stream = TokioIo::new(TcpStream::connect(&to).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let mut tasks = JoinSet::new();
    for lane in 0..AT_ONCE {
        let (mut sender, to) = (sender.clone(), to.clone());
        tasks.spawn(async move {
            let (mut dice, mut whole) = (Generator::new(seed ^ lane), 0);
            for number in (seed..seed + REQUESTS).filter(|number| number % AT_ONCE == lane) {
                let (body, patience) = (body_of(number, &mut dice), patience(&mut dice));
                let sending = sender.send_request(request(&to, host, number, body.clone()));
                whole += u64::from(own(sending, (number, body), patience).await);
            }
            whole
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Repeatedly sends half of a request and closes the connection.
async fn breaks_off(to: String) {
    for number in 0..REQUESTS {
        let mut stream = TcpStream::connect(&to).await.unwrap();
        let half = format!(
            "POST / HTTP/1.1\r\nhost: one.shop\r\nx-number: {number}\r\ncontent-length: 99999\r\n\r\nnobody's"
        );
        let _ = stream.write_all(half.as_bytes()).await;
        if number % 2 == 0 {
            stream.set_zero_linger().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_match_their_requests_despite_aborted_calls() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _servers = [
        Echo::start(&world, "shop/one", "one-0", Protocol::Http1).await,
        Echo::start(&world, "shop/one", "one-1", Protocol::Http1).await,
        Echo::start(&world, "shop/two", "two-0", Protocol::Http2).await,
    ];
    let proxy = Proxy::start(&world).await;
    let mut programs = JoinSet::new();
    for n in 0..PROGRAMS {
        let (seed, host) = (n << 32, if n % 2 == 0 { "one.shop" } else { "two.shop" });
        programs.spawn(calls_by_http1(proxy.by_host.clone(), host, seed));
        programs.spawn(calls_by_http2(proxy.by_host.clone(), host, seed | 1 << 20));
    }
    let breaking = tokio::spawn(breaks_off(proxy.for_one.clone()));
    let whole: u64 = programs.join_all().await.into_iter().sum();
    breaking.await.unwrap();
    // Two thirds of the requests are never cancelled.
    let asked = 2 * PROGRAMS * REQUESTS;
    assert!(whole > asked / 2, "{whole} of {asked} were answered");
    proxy.counts("connections_open", 0.0).await;
    let services = proxy.page("/services").await;
    assert!(!services.contains("\"inFlight\":1"), "{services}");
    others_are_served(&proxy).await;
}
