//! Requests and responses between programs on one machine bypass the proxy: it carries no bytes and rarely wakes, as
//! counted by the kernel.

use std::{collections::HashMap, fs, path::Path, process::Command, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG},
    requests::CALLER,
};
use crate::harness::{Proxy, World, alone, free_port, is_soak, skipped, tool, until};

/// Most wake-ups of the proxy per second.
const MOST_WAKE_UPS: f64 = 200.0;
/// Upper bound of the bytes of a request with its response, including what the proxy adds.
const OF_A_CALL: u64 = 1024;

/// Polling interval for the file that ends a measurement, and the longest time that calls may make no progress.
const FILE_INTERVAL: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends requests on eight connections. Arguments: a folder and a number of requests. Sends until a file `warm` exists;
/// then waits for the file `go`, and sends the given number. Keeps the connections open until the file `end` exists.
const REQUESTS: &str = r#"
import os, time
folder, number = sys.argv[1], int(sys.argv[2])
request = b"GET /plain-200 HTTP/1.1\r\nhost: raw.shop\r\n\r\n"
body = b"plain-200:" + b"x" * 200
callers = [socket.create_connection(("127.96.0.1", 80), 20) for _ in range(8)]

def read(one):
    text = b""
    while not text.endswith(body):
        piece = one.recv(4096)
        if not piece:
            print("ended after", text)
            sys.exit()
        text += piece
    if not text.startswith(b"HTTP/1.1 200 ") or text.count(b"HTTP/1.1") != 1:
        print(text)

def ask_each():
    for one in callers:
        one.sendall(request)
    for one in callers:
        read(one)

def there_is(name):
    return os.path.exists(os.path.join(folder, name))

def wait(name):
    while not there_is(name):
        time.sleep(0.01)

def tell(name):
    open(os.path.join(folder, name), "w").close()

while not there_is("warm"):
    ask_each()
tell("warmed")
wait("go")
for _ in range(number // len(callers)):
    ask_each()
tell("sent")
wait("end")
"#;

/// Number of requests: a million in a soak run.
fn number() -> u64 {
    if is_soak() { 1_000_000 } else { 50_000 }
}

/// Voluntary context switches of all threads of a process, that is, how often they waited.
fn wake_ups(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let counts = threads.filter_map(|thread| {
        // The thread may have ended meanwhile.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    counts.sum()
}

/// Time that the threads of a process waited for a processor (`schedstat`).
fn delay(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let delays = threads.filter_map(|thread| {
        // The thread may have ended meanwhile.
        let statistics = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        statistics.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(delays.sum())
}

/// Bytes carried by TCP on each of the proxy's connections, from callers and to the server.
fn carried(proxy: u16, server: u16) -> HashMap<String, u64> {
    let listed =
        Command::new("ss").args(["--tcp", "--numeric", "--info", "--no-header", "--oneline"]).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let (proxy, server) = (format!(":{proxy}"), format!(":{server}"));
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, local, peer, info @ ..] = &words[..] else { return None };
        let bytes = |name: &str| info.iter().find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
        let all = bytes("bytes_sent:").unwrap_or(0) + bytes("bytes_received:").unwrap_or(0);
        (local.ends_with(&proxy) || peer.ends_with(&server)).then(|| (format!("{local} {peer}"), all))
    };
    listed.lines().filter_map(of_line).collect()
}

/// Waits for a file. The calls may take any time, but must make progress.
async fn wait_file(attached: &Attached, path: &Path) {
    let appears = async || {
        while !path.exists() {
            sleep(FILE_INTERVAL).await;
        }
    };
    let mut last = 0;
    while timeout(PATIENCE, appears()).await.is_err() {
        let sent = attached.counter("sent-by-kernel").await;
        assert!(sent > last, "no request was sent after {sent}");
        last = sent;
    }
}

/// Growth of each counter that grew.
fn grown(before: &Value, after: &Value) -> HashMap<String, u64> {
    let counters = after["counters"].as_object().unwrap().iter();
    let grown = counters.map(|(name, count)| {
        (name.clone(), count.as_u64().unwrap() - before["counters"][name].as_u64().unwrap())
    });
    grown.filter(|(_, by)| *by > 0).collect()
}

/// Measurements taken while the requests were sent.
#[derive(Debug)]
struct Counted {
    /// Growth of the eBPF programs' counters.
    counters: HashMap<String, u64>,
    /// Bytes on the proxy's connections during the measurement, and before it.
    by_tcp: u64,
    by_tcp_before: u64,
    connections: usize,
    /// Wake-ups of the proxy.
    woken: u64,
    /// Duration of the requests, and the part of it in which the proxy waited for a processor.
    took: Duration,
    delay: Duration,
}

/// Makes the program in this folder send its requests, and measures.
async fn count(attached: &Attached, proxy: (&Proxy, u16), server: u16, folder: &Path) -> Counted {
    let file = |name: &str| folder.join(name);
    until("the kernel sends to all callers", async || attached.counter("answered-directly").await > 2000)
        .await;
    fs::write(file("warm"), "").unwrap();
    wait_file(attached, &file("warmed")).await;
    let pid = proxy.0.process.pid().as_raw_nonzero().get().unsigned_abs();
    let (counted, bytes) = (attached.status().await, carried(proxy.1, server));
    let (woken, delayed, began) = (wake_ups(pid), delay(pid), Instant::now());
    fs::write(file("go"), "").unwrap();
    wait_file(attached, &file("sent")).await;
    let (woken, delay, took) = (wake_ups(pid) - woken, delay(pid) - delayed, began.elapsed());
    let bytes_now = carried(proxy.1, server);
    let by_tcp = bytes_now.iter().map(|(name, count)| count - bytes.get(name).unwrap_or(&0)).sum();
    let counters = grown(&counted, &attached.status().await);
    fs::write(file("end"), "").unwrap();
    let by_tcp_before = bytes.values().sum();
    Counted { counters, by_tcp, by_tcp_before, connections: bytes.len(), woken, took, delay }
}

impl Counted {
    /// Panics unless the requests bypassed the proxy. The proxy may carry one in a thousand, for requests that waited
    /// for 100 ms. It may also carry the requests sent while it waited for a processor, when it has no room for the
    /// records of further calls.
    fn check(&self, number: u64) {
        let rate = number as f64 / self.took.as_secs_f64();
        let most = number / 1000 + (rate * self.delay.as_secs_f64()) as u64;
        let passed = number - self.counters["answered-directly"];
        assert!(passed <= most, "{passed} passed the proxy, {most} may: {self:?}");
        assert!(self.by_tcp <= passed * OF_A_CALL, "{passed} passed the proxy: {self:?}");
        // Each call that the proxy carries may wake it twice, for request and response.
        let most = MOST_WAKE_UPS * self.took.as_secs_f64() + 2.0 * passed as f64;
        assert!(self.woken as f64 <= most, "{most} wake-ups are allowed: {self:?}");
    }
}

/// Measures the requests with a separate proxy; `None` where eBPF is not permitted.
async fn measure(name: &str, number: u64) -> Option<Counted> {
    let attached = Attached::new(name).await?;
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let port = free_port();
    let listen =
        format!("{WITHOUT_LOG} --listen kernel:127.0.0.1:{port}+bpffs={}", attached.pins().display());
    let proxy = Proxy::with(&world, &listen).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();

    let script = format!("{CALLER}{REQUESTS}");
    let (sent, at_most) = (number.to_string(), Duration::from_secs(60 + number / 500));
    let program = ["python3", "-c", &script, &path, &sent];
    let counting = count(&attached, (&proxy, port), server.port, folder.path());
    let (said, counted) = tokio::join!(attached.run_for(&program, at_most), counting);
    assert_eq!(said.ok(), "");
    println!("{number} requests: {counted:?}");
    Some(counted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_requests_bypass_proxy_and_rarely_wake_it() {
    let _machine = alone().await;
    if let Some(missing) = ["python3", "ss"].into_iter().find(|name| tool(name).is_none()) {
        return skipped("bytes of requests are counted", format!("{missing} is missing"));
    }
    let number = number();
    let Some(counted) = measure("million", number).await else { return };
    assert!(counted.connections > 8, "{counted:?}: those of callers, and those to the server");
    assert!(counted.by_tcp_before > 0, "the first requests of all have passed it");
    counted.check(number);
}
