//! Callers, servers, policies and proxies change while the kernel sends requests and responses: for seconds, or for
//! `SOAK_MINUTES`.

use std::{env, fs, process::Command, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Attached,
    local::{ABORTS, CALLS, LocalServer},
    requests::CALLER,
};
use crate::{
    harness::{Process, World, beside_others, free_port, skipped, tool, until},
    upgrade::Place,
};

/// Pause between two changes.
const PAUSE: Duration = Duration::from_millis(300);

/// Bytes of TCP buffers that other programs on this machine may additionally use meanwhile.
const BUFFERS: u64 = 16 << 20;

/// Seconds after an outage in which requests may still fail: callers and proxies retry at intervals.
const AFTERMATH: f64 = 1.0;

/// Requests on kept connections. If a server or proxy ended with the connection, the request is repeated on another. A
/// response is either right or absent. Prints the time of each failed first request of a connection, in tenths of a
/// second since boot, and the number of good responses.
const KEPT: &str = r#"
import http.client, time
class Whole(http.client.HTTPConnection):
    """Sends a request at once, so that the kernel may send it."""
    def _send_output(self, message_body=None, encode_chunked=False):
        lines, self._buffer = self._buffer + [b"", b""], []
        self.send(b"\r\n".join(lines) + (message_body or b""))

def keep(seed):
    dice, own = random.Random(seed), None
    connect = Whole if seed % 2 else http.client.HTTPConnection
    while time.monotonic() < end:
        path = dice.choice(["plain-7", "plain-300", "plain-60000", "plain-70000", "split-9", "chunked-5", "load-3", "slow-1"])
        body = "b" * dice.randrange(dice.choice([300, 70000])) if dice.random() < 0.2 else ""
        kept = own is not None
        try:
            own = own or connect("127.96.0.1", 80, timeout=20)
            own.request("POST" if body else "GET", "/" + path, body.encode() or None, {"host": "raw.shop"})
            response = own.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            own = None
            if not kept:
                fail(type(error).__name__)
            # While there is no proxy, none listens at the address either.
            time.sleep(0.02)
            continue
        if response.status != 200:
            fail(response.status)
            time.sleep(0.05)
            continue
        good[seed] += 1
        if text != path + ":" + body + "x" * int(path.split("-")[1]):
            print("%s: %d bytes that begin with %s" % (path, len(text), text[:40]))

def fail(what):
    failures.add("%.1f %s" % (time.clock_gettime(time.CLOCK_BOOTTIME), what))

end, good, failures = time.monotonic() + seconds, [0] * 24, set()
def abort_until_the_end(seed):
    while time.monotonic() < end:
        try:
            abort(seed)
        except OSError:
            time.sleep(0.02)
        seed += 8

threads = [threading.Thread(target=keep, args=(seed,)) for seed in range(24)]
threads += [threading.Thread(target=abort_until_the_end, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for failure in sorted(failures):
    print("failed at", failure)
print("good:", sum(good))
"#;

fn soak_time() -> Duration {
    match env::var("SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<u64>().ok()) {
        Some(minutes) => Duration::from_secs(60 * minutes),
        None => Duration::from_secs(12),
    }
}

/// Makes changes to the policy, the server and the proxy.
struct Changes<'a> {
    world: &'a World,
    server: LocalServer,
    place: Place,
    listen: String,
    proxies: Vec<Process>,
    /// Resident memory of each proxy at its end, in KB.
    resident: Vec<u64>,
    /// Intervals in which no server or no proxy may have run, in seconds since boot.
    outages: Vec<[f64; 2]>,
}

/// Seconds since boot.
fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

impl Changes<'_> {
    /// Makes one change after another.
    async fn go_on(&mut self) {
        let began = Instant::now();
        for at in 0_usize.. {
            let policy = ["random", "roundRobin", "leastRequest", "score"][at % 4];
            let record = format!("{{kind: Policy, service: shop/raw, balancing: {{policy: {policy}}}}}");
            self.world.apply(&record).await.ok();
            sleep(PAUSE).await;
            if at % 8 == 3 {
                // The callers may end before the outage does.
                self.outages.push([uptime(), f64::INFINITY]);
                self.server.restart().await;
                self.end_outage();
            }
            if at % 8 == 7 && began.elapsed() < soak_time() {
                match at % 24 {
                    23 => self.kill(at).await,
                    _ => self.upgrade(at).await,
                }
            }
        }
    }

    async fn upgrade(&mut self, at: usize) {
        self.note_memory();
        self.proxies.push(self.place.proxy(&format!("next-{at}"), &self.listen));
        // Waits until the proxy before the predecessor has drained.
        while self.proxies.len() > 2 {
            let mut drained = self.proxies.remove(0);
            until("a predecessor has drained", async || drained.has_ended().is_some()).await;
        }
    }

    /// Kills all proxies, with their requests in flight, and starts another.
    async fn kill(&mut self, at: usize) {
        self.note_memory();
        self.outages.push([uptime(), f64::INFINITY]);
        for mut proxy in self.proxies.drain(..) {
            proxy.kill().await;
        }
        self.proxies.push(self.place.proxy(&format!("after-{at}"), &self.listen));
        self.place.ready().await;
        self.end_outage();
    }

    fn end_outage(&mut self) {
        self.outages.last_mut().unwrap()[1] = uptime();
    }

    /// Panics unless the callers printed only good responses, and failures during outages.
    fn check_responses(&self, said: &str) {
        let (failures, good) = said.split_once("good: ").unwrap_or((said, "0"));
        let good: u64 = good.trim().parse().unwrap();
        println!("{good} good responses, {} times of failures", failures.lines().count());
        assert!(good > 1000, "{said}");
        for failure in failures.lines() {
            let at = failure.strip_prefix("failed at ").and_then(|rest| rest.split_once(' '));
            let at: f64 = at.unwrap_or_else(|| panic!("{failure}")).0.parse().unwrap();
            // Times are printed in tenths of a second.
            let is_within = |[from, to]: &[f64; 2]| (from - 0.1..to + AFTERMATH).contains(&at);
            assert!(self.outages.iter().any(is_within), "{failure}, without an outage: {:?}", self.outages);
        }
    }

    fn note_memory(&mut self) {
        let Some(pid) = self.proxies.last().map(|proxy| proxy.pid().as_raw_nonzero()) else { return };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
        self.resident.extend(line.and_then(|size| size.trim().parse::<u64>().ok()));
    }

    /// Proxies of the second half of the run must be no larger than those of the first half. Needs a run of ten proxies
    /// or more, which takes minutes; shorter runs as in `make test` are not judged.
    fn check_memory(&self) {
        let (first, second) = self.resident.split_at(self.resident.len() / 2);
        let median = |all: &[u64]| {
            let mut all = all.to_vec();
            all.sort_unstable();
            all[all.len() / 2] as f64
        };
        // The first proxies start with a service without calls.
        if first.len() < 5 {
            println!("memory is not judged by {} proxies", self.resident.len());
        } else {
            let growth = median(second) / median(first);
            assert!((0.95..1.05).contains(&growth), "memory of proxies in KB: {:?}", self.resident);
        }
    }
}

/// Memory of the maps, and of all TCP buffers on this machine, in bytes.
async fn kernel_memory(attached: &Attached) -> [u64; 2] {
    let status = attached.status().await;
    let maps = status["memory"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    let sockets = fs::read_to_string("/proc/net/sockstat").unwrap();
    let pages =
        sockets.lines().find(|line| line.starts_with("TCP:")).and_then(|line| line.split(' ').next_back());
    [maps, pages.unwrap().parse::<u64>().unwrap() * 4096]
}

/// Makes the kernel repeat warnings that it otherwise prints once, where the system permits.
fn repeat_warnings() {
    let _ = fs::write("/sys/kernel/debug/clear_warn_once", "1");
}

/// Number of kernel messages about errors of its own; `None` if the log is not readable.
fn kernel_errors() -> Option<usize> {
    let said = Command::new("dmesg").output().ok().filter(|said| said.status.success())?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    Some(
        said.lines()
            .filter(|line| ["------------[", "BUG: ", "WARNING: CPU"].iter().any(|one| line.contains(one)))
            .count(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_callers_get_own_responses_while_everything_changes() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("callers and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("soak").await else { return };
    repeat_warnings();
    let Some(errors) = kernel_errors() else {
        return skipped("errors of the kernel cannot be seen", "dmesg is refused");
    };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let place = Place::new(&world);
    let listen = format!(
        " --access-log off --drain-deadline 5s --listen kernel:127.0.0.1:{}+bpffs={}",
        free_port(),
        attached.pins().display()
    );
    let proxies = vec![place.proxy("first", &listen)];
    place.ready().await;
    // The limit is lower than the number of callers.
    attached.attach_with(&["--servers", &server.cgroup, "--max-in-flight", "20"]).await;
    let [maps, buffers] = kernel_memory(&attached).await;
    let mut changes =
        Changes { world: &world, server, place, listen, proxies, resident: Vec::new(), outages: Vec::new() };

    let aborts = ABORTS.split("threads =").next().unwrap_or_default();
    let script = format!("{CALLER}{CALLS}{aborts}\nseconds = {}\n{KEPT}", soak_time().as_secs());
    let (program, at_most) = (["python3", "-c", &script], soak_time() * 2 + Duration::from_secs(60));
    let said = tokio::select! {
        said = attached.run_for(&program, at_most) => said.ok(),
        () = changes.go_on() => unreachable!("it goes on"),
    };
    changes.check_responses(&said);
    let status = attached.status().await;
    assert!(status["counters"]["answered-directly"].as_u64() > Some(100), "{status}");
    until("no request is in flight, nor counted so for the cgroup", async || {
        let status = attached.status().await;
        let mut attachments = status["attachments"].as_array().unwrap().iter();
        status["inFlight"] == 0 && attachments.all(|one| one["inFlight"] == 0)
    })
    .await;
    changes.check_memory();
    until("buffers and maps are as they were before", async || {
        let [maps_now, buffers_now] = kernel_memory(&attached).await;
        // Recent services, links and connections have map entries of some hundred bytes.
        maps_now <= maps + maps / 20 && buffers_now <= buffers + BUFFERS
    })
    .await;
    assert_eq!(kernel_errors(), Some(errors), "the kernel tells of an error: dmesg");
}
