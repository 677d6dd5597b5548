//! Timeouts of calls as seen by programs that know nothing of Fairmesh: curl, and gRPC in Python.

mod foreign;
mod long;
mod server;
mod unread;

use std::time::Duration;

use fairmesh_model::Protocol;
use tokio::{process::Command, time::Instant};

use self::server::{MESSAGE, Slow};
use crate::harness::{PATIENCE, Proxy, Run, World, beside_others, run, until};

/// Idle timeout in these tests, in milliseconds.
const IDLE: u64 = 1000;
/// A response in pieces: each arrives well within [`IDLE`], and all together take much longer.
const MOVES: &str = "drip-20-80";

const HTTP1: &str = "--http1.1";
const HTTP2: &str = "--http2-prior-knowledge";

/// A mesh whose services have this policy, with a proxy.
struct Mesh {
    world: World,
    proxy: Proxy,
    servers: Vec<Slow>,
}

impl Mesh {
    /// `timeouts` are the fields of the policy.
    async fn start(timeouts: &str) -> Self {
        let world = World::start("").await;
        let mut servers = Vec::new();
        for (name, protocol) in [("one", Protocol::Http1), ("two", Protocol::Http2), ("rpc", Protocol::Grpc)]
        {
            servers.push(Slow::start(&world, &format!("shop/{name}"), protocol).await);
            if !timeouts.is_empty() {
                world.apply(&format!("{{kind: Policy, service: shop/{name}, {timeouts}}}")).await.ok();
            }
        }
        let proxy = Proxy::with(&world, "--idle-timeout 75s").await;
        Self { world, proxy, servers }
    }

    /// Runs curl, with headers and trailers in its output.
    async fn curl(&self, version: &str, host: &str, path: &str, more: &[&str]) -> Run {
        let mut command = Command::new("curl");
        let url = format!("http://{}/any/{path}", self.proxy.by_host);
        command.args(["-sS", "-N", "-i", version, "-H", &format!("host: {host}.shop")]);
        command.args(more).arg(url);
        run(command, "", PATIENCE).await
    }
}

fn silent() -> String {
    format!("responseHeaderTimeout: {IDLE}ms, idleTimeout: {IDLE}ms")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn active_transfers_continue_and_silent_ones_time_out() {
    let _machine = beside_others().await;
    let mesh = Mesh::start(&silent()).await;
    // curl's exit code for a truncated response, and its message for a reset stream.
    for (version, broke, said) in [(HTTP1, 18, ""), (HTTP2, 92, "CANCEL (err 8)")] {
        for host in ["one", "two"] {
            let moves = mesh.curl(version, host, MOVES, &[]).await;
            assert_eq!(moves.code, Some(0), "{}", moves.err);
            assert_eq!(moves.out.matches("tea").count(), 20);
            let began = Instant::now();
            let stalls = mesh.curl(version, host, "stall", &[]).await;
            assert_eq!(stalls.code, Some(broke), "{}", stalls.err);
            assert!(stalls.out.contains(" 200") && stalls.out.ends_with("tea"), "{}", stalls.out);
            assert!(stalls.err.contains(said), "{}", stalls.err);
            assert!(began.elapsed() >= Duration::from_millis(IDLE));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_server_yields_504_on_every_path() {
    let _machine = beside_others().await;
    let mesh = Mesh::start(&silent()).await;
    // One request is forwarded unparsed, the other is parsed, since its header is meant for the proxy.
    let apart: &[&str] = &["-H", "x-fairmesh-idempotent: true"];
    for (version, more) in [(HTTP1, &[][..]), (HTTP1, apart), (HTTP2, &[][..])] {
        for host in ["one", "two"] {
            // Opens a connection; only messages on an open connection are forwarded unparsed.
            assert_eq!(mesh.curl(version, host, "told", more).await.code, Some(0));
            let began = Instant::now();
            let silent = mesh.curl(version, host, "silent", more).await;
            assert!(
                silent.out.contains(" 504") && silent.out.contains("x-fairmesh-fault: deadline"),
                "{}",
                silent.out
            );
            assert!(silent.out.contains("sent no response headers within 1s"), "{}", silent.out);
            assert!(began.elapsed() >= Duration::from_millis(IDLE));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_with_deadline_is_bounded_by_it_and_by_no_default_timeout() {
    let _machine = beside_others().await;
    let mesh = Mesh::start("").await;
    for (version, host) in [(HTTP1, "one"), (HTTP2, "two")] {
        let told = mesh.curl(version, host, "told", &[]).await;
        assert!(told.out.ends_with("- -"), "{}", told.out);
        let hour = mesh.curl(version, host, "told", &["-H", "x-fairmesh-deadline: 7200000"]).await;
        let left = hour.out.rsplit(' ').next().unwrap().parse::<u64>();
        assert!(left.is_ok_and(|left| (7_100_000..=7_200_000).contains(&left)), "{}", hour.out);
        let soon = mesh.curl(version, host, "late-10000", &["-H", "x-fairmesh-deadline: 300"]).await;
        assert!(soon.out.contains(" 504"), "{}", soon.out);
    }
    let grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", "x"];
    let told = mesh.curl(HTTP2, "rpc", "told", &grpc).await;
    assert!(told.out.contains("- -") && told.out.contains("grpc-status: 0"), "{}", told.out);
    mesh.world.apply("{kind: Policy, service: shop/one, timeout: 400ms}").await.ok();
    until("the policy is known", async || {
        let cut = mesh.curl(HTTP1, "one", MOVES, &["-H", "x-fairmesh-deadline: 60000"]).await;
        cut.code == Some(18)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_status_of_begun_grpc_call_comes_from_server() {
    let _machine = beside_others().await;
    let mesh = Mesh::start("").await;
    let grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", "x"];
    let soon = ["-H", "grpc-timeout: 400m"];
    // On a busy machine, the deadline may pass before the first message arrives.
    until("a call that began ends with its status", async || {
        let stalls = mesh.curl(HTTP2, "rpc", "stall", &[&grpc[..], &soon].concat()).await;
        assert_eq!(stalls.code, Some(0), "{}", stalls.err);
        assert!(stalls.out.contains("grpc-status: 4"), "{}", stalls.out);
        stalls.out.contains("tea") && stalls.out.contains("grpc-message: the%20call%20timed%20out")
    })
    .await;
    // Without a grace period, the proxy would end the call first. On a busy machine, the server may be late once.
    let mut own_status = 0;
    for _ in 0..9 {
        let own = mesh.curl(HTTP2, "rpc", "own", &[&grpc[..], &soon].concat()).await;
        own_status += usize::from(own.out.contains("grpc-message: the server says so"));
    }
    assert!(own_status >= 5, "the server's own status came first {own_status} times of 9");
    // gRPC-Web has its status in the body, over both versions of HTTP.
    for version in [HTTP1, HTTP2] {
        let web = ["-H", "content-type: application/grpc-web+proto", "-d", "x"];
        let file = mesh.world.path("response");
        let output = ["-o", file.to_str().unwrap()];
        let mut came = Vec::new();
        let mut message = None;
        until("the message comes in time", async || {
            let stalls = mesh.curl(version, "two", "stall", &[&web[..], &soon, &output].concat()).await;
            assert_eq!(stalls.code, Some(0), "{}", stalls.err);
            came = std::fs::read(&file).unwrap_or_default();
            message = came.windows(MESSAGE.len()).position(|part| part == MESSAGE);
            message.is_some()
        })
        .await;
        let ends = message.unwrap() + MESSAGE.len();
        assert_eq!(came[ends..ends + 3], [0x80, 0, 0], "a frame of trailers");
        let trailers = std::str::from_utf8(&came[ends + 5..]).unwrap();
        assert!(trailers.starts_with("grpc-status:4\r\ngrpc-message:the%20call%20timed%20out"), "{trailers}");
    }
}
