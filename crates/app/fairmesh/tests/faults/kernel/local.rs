//! Requests to a server on this machine, whose responses the kernel moves to the callers.

use std::process::Stdio;

use fairmesh_test_support::{PATIENCE, eventually_within};
use tokio::process::{Child, Command};

use super::{Attached, requests::CALLER};
use crate::harness::{Proxy, RawServer, World, beside_others, free_port, skipped, tool, until};

/// Without an access log, which these tests do not check.
pub(super) const WITHOUT_LOG: &str = "--access-log off";

/// A server that responds according to the path, with as many sends as the path names.
pub(super) const SERVER: &str = r#"
import socket, sys, threading, time

def read_request(file):
    line, length = file.readline(), 0
    while True:
        name, _, value = file.readline().partition(b":")
        if not value:
            break
        if name.lower() == b"content-length":
            length = int(value)
    return line.split()[1][1:].decode() if line else None, file.read(length)

requests, closed, released = [], [], threading.Event()

def respond(connection, path, body):
    kind, _, size = path.partition("-")
    text = path.encode() + b":" + body + b"x" * int(size or 0)
    head = b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\n" % (b"500 Failed" if kind == "fail" else b"200 OK")
    length = b"content-length: %d\r\n\r\n" % len(text)
    if kind == "count":
        text = b"%d" % len(requests)
        length = b"content-length: %d\r\n\r\n" % len(text)
    if kind == "closed":
        text = b"%d" % len(closed)
        length = b"content-length: %d\r\n\r\n" % len(text)
    if kind == "brief":
        # As a server does that keeps no idle connection for long.
        connection.settimeout(0.05)
    requests.append(path)
    if kind == "early":
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
    if kind == "slow":
        time.sleep(0.3)
    # Before the response, after which the caller goes on.
    if kind == "hold":
        released.clear()
    if kind == "release":
        released.set()
    if kind == "die":
        return connection.shutdown(socket.SHUT_RDWR)
    if kind == "split":
        connection.sendall(head + length)
        time.sleep(0.01)
        connection.sendall(text)
    elif kind == "chunked":
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(text), text))
    elif kind == "load":
        connection.sendall(head + b"endpoint-load-metrics: TEXT cpu_utilization=0.5\r\n" + length + text)
    else:
        connection.sendall(head + length + text)
    if kind == "hold":
        # Reads no further until it is released.
        released.wait()
    if kind == "last":
        connection.shutdown(socket.SHUT_RDWR)

def serve(connection):
    file = connection.makefile("rb")
    while True:
        try:
            path, body = read_request(file)
        except TimeoutError:
            connection.shutdown(socket.SHUT_RDWR)
            return closed.append(connection)
        if path is None:
            return
        respond(connection, path, body)

family = socket.AF_INET6 if sys.argv[1] == "6" else socket.AF_INET
listener = socket.create_server(("", int(sys.argv[2])), family=family, dualstack_ipv6=family == socket.AF_INET6)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Prints each response that does not belong to its request.
pub(super) const CALLS: &str = r#"
def check(path, sent=b""):
    status, body = read_response()
    kind, _, size = path.partition(b"-")
    expected = (b"500" if kind == b"fail" else b"200", path + b":" + sent + b"x" * int(size or 0))
    if (status, body) != expected:
        print("%s: %s, %d bytes that begin with %s" % (path, status, len(body), body[:40]))

def ask(path, sent=b""):
    send(path, sent)
    check(path, sent)
"#;

/// Callers that disconnect before, during and after the response; some never read.
pub(super) const ABORTS: &str = r#"
import random, struct, threading

def abort(seed):
    dice = random.Random(seed)
    for _ in range(25):
        one = socket.create_connection(("127.96.0.1", 80), 20)
        for _ in range(dice.randrange(1, 4)):
            path = dice.choice(["plain-9", "plain-60000", "split-9", "chunked-5", "slow-5", "plain-200000"])
            one.sendall(b"GET /%s HTTP/1.1\r\nhost: raw.shop\r\n\r\n" % path.encode())
            if dice.random() < 0.5:
                one.recv(dice.choice([1, 100, 100000]))
        if dice.random() < 0.5:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()

threads = [threading.Thread(target=abort, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for at in range(200):
    ask(b"plain-%d" % (at * 10), b"b" * at)
for thread in threads:
    thread.join()
"#;

/// A server in a cgroup of its own. Dropping the value ends the server.
pub(super) struct LocalServer {
    process: Contained,
    _registered: fairmesh_server::MeshServer,
    pub(super) cgroup: String,
    pub(super) port: u16,
    program: Vec<String>,
}

impl LocalServer {
    pub(super) async fn start(world: &World, attached: &Attached, family: &str) -> Self {
        let program =
            |port| ["python3", "-c", SERVER, family, &format!("{port}")].map(str::to_owned).to_vec();
        Self::running(world, attached, "shop/raw", program).await
    }

    /// Starts the server with an interpreter of another name.
    pub(super) async fn called(world: &World, attached: &Attached, python: &str) -> Self {
        let program = |port| [python, "-c", SERVER, "4", &format!("{port}")].map(str::to_owned).to_vec();
        Self::running(world, attached, "shop/raw", program).await
    }

    /// Runs a program that serves a service at the port it receives as an argument.
    pub(super) async fn running(
        world: &World,
        attached: &Attached,
        service: &str,
        program: impl FnOnce(u16) -> Vec<String>,
    ) -> Self {
        let (listener, registered) = RawServer::start(world, service, "raw-1").await.into_parts();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let (cgroup, program) = (format!("{}-servers", attached.cgroup), program(port));
        let process = run_in(&cgroup, &program, port).await;
        Self { process, _registered: registered, cgroup, port, program }
    }

    /// Kills the server process, and starts another at the same address.
    pub(super) async fn restart(&mut self) {
        self.kill().await;
        self.begin().await;
    }

    pub(super) async fn kill(&mut self) {
        self.process.0.kill().await.unwrap();
    }

    pub(super) async fn begin(&mut self) {
        self.process = run_in(&self.cgroup, &self.program, self.port).await;
    }
}

/// A program in a cgroup. It has ended once the value is dropped, so that it can neither hold nor create the cgroup.
pub(super) struct Contained(Child);

impl Drop for Contained {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.start_kill();
        let has_ended = eventually_within(PATIENCE, || !matches!(self.0.try_wait(), Ok(None)));
        assert!(has_ended || std::thread::panicking(), "{:?} does not end", self.0);
    }
}

/// Starts a program in a cgroup and waits until it listens at `port`; dropping the value ends it. A program that exits
/// early is started again, since a caller's connection may occupy the port while no server has it.
pub(super) async fn run_in(cgroup: &str, program: &[String], port: u16) -> Contained {
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(["kernel", "run", "--cgroup", cgroup, "--"]).args(program);
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
    };
    let mut process = Contained(start());
    until(&format!("{} listens", program[0]), async || {
        if process.0.try_wait().unwrap().is_some() {
            process = Contained(start());
        }
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;
    process
}

pub(super) async fn call(attached: &Attached, script: &str) -> String {
    attached.run(&["python3", "-c", &format!("{CALLER}{CALLS}{script}")]).await.ok()
}

async fn responses_of_the_kernel(family: &str) {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new(&format!("local{family}")).await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, family).await;
    let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;

    let before = called_until_published(&attached).await;
    let script = "for at in range(60):\n    ask(b'plain-%d' % (at * 100), b'b' * at)";
    let direct = directly(&attached, script).await;
    assert!(direct >= 55, "{direct} of 60, without those before the proxy served the connection");
    mixed_responses(&attached).await;
    proxy_counts(&proxy, before + 60 + 6 * 20 + 3 + 4, 1).await;

    let script = "import time\nfor at in range(12):\n    ask(b'plain-1')\n    time.sleep(0.3)";
    let direct = directly(&attached, script).await;
    assert!(direct > 8, "{direct}: a connection is not idle while the kernel sends its requests");
}

/// Calls until the kernel moves a response, which shows that the service is published; returns the number of calls.
pub(super) async fn called_until_published(attached: &Attached) -> u64 {
    const AT_ONCE: u64 = 4;
    let mut calls = 0;
    until("the kernel sends responses", async || {
        calls += AT_ONCE;
        directly(attached, &format!("for _ in range({AT_ONCE}):\n    ask(b'plain-1')")).await > 0
    })
    .await;
    calls
}

/// Runs a script whose responses must all be right; returns the number of responses that the kernel moved.
pub(super) async fn directly(attached: &Attached, script: &str) -> u64 {
    let before = attached.counter("answered-directly").await;
    assert_eq!(call(attached, script).await, "");
    attached.counter("answered-directly").await - before
}

async fn mixed_responses(attached: &Attached) {
    // Each response that the proxy must read lies between responses that it need not read.
    let direct = directly(
        attached,
        "for at in range(20):\n    for path in b'plain-7 split-9 chunked-5 plain-60000 plain-70000 load-3'.split():\n        ask(path)\n\
         ask(b'slow-5')\nask(b'plain-1')\nask(b'fail')\nask(b'plain-2')\n\
         for path in (b'plain-3', b'slow-4', b'plain-5', b'plain-6'):\n    send(path)\n\
         for path in (b'plain-3', b'slow-4', b'plain-5', b'plain-6'):\n    check(path)\n",
    )
    .await;
    // The response after a chunked one may also be read by the proxy, which must first account for what it sends
    // itself.
    assert!(direct >= 2 * 20 - 5, "{direct}: two of each six, and mostly three");
    assert!(attached.counter("response-left").await >= 3 * 20 - 5);
}

/// Waits until the proxy has counted all calls, including those whose responses bypassed it.
pub(super) async fn proxy_counts(proxy: &Proxy, succeeded: u64, failed: u64) {
    let mut page = String::new();
    until("all responses are counted", async || {
        page = proxy.page("/metrics").await;
        [("2xx", succeeded), ("5xx", failed)].into_iter().all(|(class, expected)| {
            let name = format!("fairmesh_proxy_responses_total{{service=\"shop/raw\",class=\"{class}\"");
            let counts = page.lines().filter(|line| line.starts_with(&name));
            let counts = counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
            counts.sum::<u64>() == expected
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_server_responses_bypass_proxy() {
    responses_of_the_kernel("4").await;
}

/// Every call is in the access log, even if the caller disconnects before the call is recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_log_contains_calls_that_bypass_proxy() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("logged").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let proxy = attached.proxy_with(&world, "--access-log json").await;
    attached.attach_with(&["--servers", &server.cgroup]).await;
    called_until_published(&attached).await;
    let script = "for at in range(60):\n    ask(b'plain-%d' % (at * 10), b'b' * at)\nask(b'plain-7654')";
    let direct = directly(&attached, script).await;
    assert!(direct >= 55, "{direct} of 61");
    let mut logged = Vec::new();
    until("all calls are logged", async || {
        let log = proxy.process.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        logged = lines.filter(|line| line["service"] == "shop/raw").collect();
        logged.iter().any(|line| line["path"] == "/plain-7654")
    })
    .await;
    for at in 0..60 {
        let path = format!("/plain-{}", at * 10);
        let is_whole = |line: &&serde_json::Value| {
            line["path"] == path.as_str() && line["status"] == 200 && line["attempts"] == 1
        };
        let line = logged.iter().find(is_whole).unwrap_or_else(|| panic!("{path} in {logged:?}"));
        assert_eq!(line["bytes_out"], path.len() as u64 + at * 11, "{line}");
        assert!(line["caller"].as_str().is_some_and(|caller| caller.starts_with("127.")), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_server_responses_bypass_proxy_over_ipv6_sockets() {
    responses_of_the_kernel("6").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_callers_and_dead_servers_leave_no_request_in_flight() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("aborts").await else { return };
    let world = World::start("").await;
    let mut server = LocalServer::start(&world, &attached, "4").await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;

    assert_eq!(call(&attached, ABORTS).await, "", "each caller gets its own responses");
    assert!(attached.counter("answered-directly").await > 150);
    let none_in_flight = async || attached.status().await["inFlight"] == 0;
    until("no request is in flight", none_in_flight).await;

    server.kill().await;
    let failed = call(&attached, "send(b'plain-1')\nprint(read_response()[0].decode())").await;
    assert_eq!(failed.trim(), "503");
    server.begin().await;
    until("the kernel sends responses of the new process", async || {
        let before = attached.counter("answered-directly").await;
        let said = call(&attached, "for at in range(5):\n    send(b'plain-1')\n    read_response()").await;
        said.is_empty() && attached.counter("answered-directly").await >= before + 3
    })
    .await;
    until("no request is in flight", none_in_flight).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_in_cgroup_has_ended_when_it_is_dropped() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the program is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("ended").await else { return };
    let (cgroup, port) = (format!("{}-servers", attached.cgroup), free_port());
    let program = ["python3", "-c", SERVER, "4", &port.to_string()].map(str::to_owned);
    let process = run_in(&cgroup, &program, port).await;
    let pid = process.0.id().unwrap();
    drop(process);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it can still hold its cgroup");
}
