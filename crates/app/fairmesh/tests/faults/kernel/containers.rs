//! Callers in containers: network and mount namespaces of their own, with equal addresses.

use std::{
    fs,
    process::{ExitStatus, Stdio},
};

use fairmesh_kernel::mounted_cgroup2;
use fairmesh_test_support::{is_soak, namespaces::Namespace};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::{
    Attached, PATIENCE,
    local::{LocalServer, WITHOUT_LOG},
};
use crate::{
    harness::{Proxy, World, beside_others, free_port, skipped, tool, until},
    upgrade::Place,
};

/// Calls of each container, on connections from the same addresses in all containers.
fn calls() -> usize {
    if is_soak() { 10_000 } else { 2_000 }
}

/// Shared part of the programs in containers. Each prints a line once it is in its namespaces, and waits for one.
const PROGRAM: &str = r#"
import socket, sys, threading, time
name = sys.argv[1].encode()
print("ready", flush=True)
sys.stdin.readline()

def connect(port=0, to=("127.96.0.1", 80)):
    connection = socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if port:
        connection.bind(("127.0.0.1", port))
    connection.settimeout(20)
    connection.connect(to)
    return connection

def read_response(file):
    status, length = file.readline().split()[1], 0
    while line := file.readline().strip():
        key, _, value = line.partition(b":")
        if key.lower() == b"content-length":
            length = int(value)
    return status, file.read(length)

def call(connection, file, number):
    body = b"%s-%d" % (name, number)
    connection.sendall(b"POST /plain-%d HTTP/1.1\r\nhost: raw.shop\r\ncontent-length: %d\r\n\r\n%s"
                       % (number % 100, len(body), body))
    said = read_response(file)
    return said == (b"200", b"plain-%d:%s%s" % (number % 100, body, b"x" * (number % 100))), said
"#;

/// Calls on four connections at once, from equal ports in each container.
const EQUAL: &str = r#"
good = [0] * 4
def calls(at):
    connection = connect(41000 + at)
    file = connection.makefile("rb")
    for number in range(COUNT // 4):
        is_right, said = call(connection, file, number)
        good[at] += is_right
        if not is_right:
            print(said, flush=True)

threads = [threading.Thread(target=calls, args=(at,)) for at in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("good:", sum(good), flush=True)
"#;

/// Calls on two connections at once, over IPv6.
const OVER_IPV6: &str = r#"
good = [0] * 2
def calls(at):
    connection = connect(to=("fd96::1", 80))
    file = connection.makefile("rb")
    for number in range(300):
        good[at] += call(connection, file, number)[0]

threads = [threading.Thread(target=calls, args=(at,)) for at in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("good:", sum(good), flush=True)
"#;

/// Asks for a host that is no service at an address that is another server's outside of the container.
const ELSEWHERE: &str = r#"
connection = connect(to=("127.96.1.1", PORT))
connection.sendall(b"GET / HTTP/1.1\r\nhost: elsewhere.test\r\n\r\n")
print("elsewhere:", read_response(connection.makefile("rb"))[0].decode(), flush=True)
"#;

/// Calls until it is killed.
const ENDLESS: &str = r#"
def calls(at):
    connection = connect(41000 + at)
    file = connection.makefile("rb")
    for number in range(1 << 30):
        is_right, said = call(connection, file, number)
        if number == 200 or not is_right:
            print("called" if is_right else said, flush=True)

for at in range(4):
    threading.Thread(target=calls, args=(at,)).start()
"#;

/// Calls on connections of their own, in a process that lives longer than the one that started it.
const INHERITED: &str = r#"
import os
if os.fork():
    os._exit(0)
sys.stdin.readline()
good, began = 0, time.monotonic()
while good < 50 or time.monotonic() < began + 1:
    try:
        with connect() as connection:
            good += call(connection, connection.makefile("rb"), good)[0]
    except (OSError, IndexError):
        # The proxy listens for this process in a moment.
        time.sleep(0.01)
print("called", flush=True)
sys.stdin.readline()
"#;

/// A call on each of many connections, several at a time, until it gets another line. Some connections are always about to be
/// accepted or have just been.
const FRESH: &str = r#"
stopped, good, lock = [], [0], threading.Lock()

def calls():
    while not stopped:
        try:
            with connect() as connection:
                is_right, said = call(connection, connection.makefile("rb"), good[0])
        except OSError as error:
            print("failed:", error, flush=True)
            continue
        if not is_right:
            print("wrong:", said, flush=True)
        with lock:
            good[0] += is_right
            if good[0] == 50:
                print("called", flush=True)

threads = [threading.Thread(target=calls) for _ in range(8)]
for thread in threads:
    thread.start()
sys.stdin.readline()
stopped.append(1)
for thread in threads:
    thread.join()
print("good:", good[0], flush=True)
"#;

/// A program in a cgroup, a network namespace and a mount namespace of its own.
pub(super) struct Container {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    cgroup: String,
    // Removed once the process has ended.
    network: Namespace,
}

impl Container {
    /// Starts the program, which then waits for [`go`](Self::go).
    pub(super) async fn start(name: &str, cgroup: String, script: &str) -> Self {
        let network = Namespace::new(name).unwrap();
        network.ip(&["link", "set", "lo", "up"]).unwrap();
        let net = format!("--net=/run/netns/{}", network.name());
        let script = format!("{PROGRAM}{script}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(["kernel", "run", "--cgroup", &cgroup, "--", "nsenter", &net, "unshare", "--mount"]);
        command.args(["python3", "-c", &script, name]);
        command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut container = Self { process, lines, cgroup, network };
        assert_eq!(container.line().await, "ready");
        container
    }

    /// The name of its network namespace.
    pub(super) fn network(&self) -> &str {
        self.network.name()
    }

    fn pid(&self) -> String {
        self.process.id().unwrap().to_string()
    }

    pub(super) async fn go(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
    }

    pub(super) async fn line(&mut self) -> String {
        timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap().unwrap_or_default()
    }

    /// Everything that the program prints until it ends.
    pub(super) async fn rest(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(line) = timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap() {
            said.push(line);
        }
        timeout(PATIENCE, self.process.wait()).await.unwrap().unwrap();
        said
    }
}

/// A command `attach` that goes on while containers run.
struct Follower(Child);

impl Follower {
    /// Starts the command, and waits until it has attached.
    async fn start(attached: &Attached, what: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(["kernel", "attach", "--to", "127.96.0.0/16"]).args(what);
        command.arg("--bpffs").arg(attached.pins()).env_clear();
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap_or_default();
        assert!(line.starts_with("attached to ") && line.contains("connections go to the proxy"), "{line}");
        Self(process)
    }

    /// Removes the cgroup and makes it again, while the command cannot look.
    fn replace(&self, cgroup: &str) {
        let process = Pid::from_raw(self.0.id().unwrap().cast_signed()).unwrap();
        let folder = mounted_cgroup2().unwrap().join(cgroup.trim_start_matches('/'));
        kill_process(process, Signal::STOP).unwrap();
        fs::remove_dir(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        kill_process(process, Signal::CONT).unwrap();
    }

    /// Waits until the command ends by itself.
    async fn ended(mut self) -> ExitStatus {
        timeout(PATIENCE, self.0.wait()).await.unwrap().unwrap()
    }
}

/// A mesh with a server and a proxy outside of containers.
struct Outside {
    // The cgroup of the server can be removed once the server has ended.
    server: LocalServer,
    proxy: Proxy,
    _world: World,
    attached: Attached,
}

impl Outside {
    /// `None` where eBPF is not permitted.
    async fn start(name: &str) -> Option<Self> {
        let attached = prepared(name).await?;
        let world = World::start("").await;
        let server = LocalServer::start(&world, &attached, "4").await;
        let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
        attached.attach_with(&["--servers", &server.cgroup]).await;
        Some(Self { server, proxy, _world: world, attached })
    }

    async fn container(&self, name: &str, script: &str) -> Container {
        Container::start(name, format!("{}-{name}", self.attached.cgroup), script).await
    }

    async fn follow(&self, container: &Container) -> Follower {
        let port = self.server.port.to_string();
        Follower::start(&self.attached, &["--container", &container.pid(), "--port", "80", "--port", &port])
            .await
    }

    /// Waits until nothing of ended containers is left: no listener, connection, lease, attachment or pin.
    async fn nothing_left(&self, containers: &[String]) {
        self.proxy.counts("connections_open", 0.0).await;
        until("nothing of the containers is left", async || {
            let status = self.attached.status().await;
            let mut attachments = status["attachments"].as_array().unwrap().iter();
            let is_idle = |one: &serde_json::Value| {
                one["connections"] == 0
                    && one["inFlight"] == 0
                    && !containers.iter().any(|cgroup| one["cgroup"] == cgroup.as_str())
            };
            status["namespaces"] == 0 && status["inFlight"] == 0 && attachments.all(is_idle)
        })
        .await;
        // Of the callers' cgroup and of the servers' one.
        let pins = fs::read_dir(self.attached.pins()).unwrap();
        let links =
            pins.filter(|pin| pin.as_ref().unwrap().file_name().to_string_lossy().starts_with("link-"));
        assert_eq!(links.count(), 5 + 1);
    }
}

async fn prepared(name: &str) -> Option<Attached> {
    for program in ["python3", "nsenter", "unshare", "ip"] {
        if tool(program).is_none() {
            skipped("containers are made by util-linux, and their programs are Python", program);
            return None;
        }
    }
    Attached::new(name).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_with_equal_addresses_get_their_own_responses() {
    let _machine = beside_others().await;
    let Some(outside) = Outside::start("equal").await else { return };
    let elsewhere = ELSEWHERE.replace("PORT", &outside.server.port.to_string());
    let script = format!("{elsewhere}{}", EQUAL.replace("COUNT", &calls().to_string()));
    let (mut containers, mut followers) = (Vec::new(), Vec::new());
    for name in ["one", "two"] {
        let container = outside.container(name, &script).await;
        followers.push(outside.follow(&container).await);
        containers.push(container);
    }
    assert_eq!(outside.attached.status().await["namespaces"], 2);
    let before = outside.attached.counter("sent-by-kernel").await;
    for container in &mut containers {
        container.go().await;
    }
    for container in &mut containers {
        let expected = ["elsewhere: 404".to_owned(), format!("good: {}", calls())];
        assert_eq!(container.rest().await, expected, "{}", container.cgroup);
    }
    let sent = outside.attached.counter("sent-by-kernel").await - before;
    let most = 2 * calls() * 9 / 10;
    assert!(sent as usize > most, "{sent} of {}", 2 * calls());
    assert!(outside.attached.counter("answered-directly").await as usize > most);
    for follower in followers {
        assert!(follower.ended().await.success());
    }
    let cgroups: Vec<_> = containers.iter().map(|one| one.cgroup.clone()).collect();
    outside.nothing_left(&cgroups).await;
}

/// No address of IPv6 but that of the loopback interface, and no route, exists in these containers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_call_over_ipv6() {
    let _machine = beside_others().await;
    let Some(outside) = Outside::start("six").await else { return };
    let (mut containers, mut followers) = (Vec::new(), Vec::new());
    for name in ["six1", "six2"] {
        let container = outside.container(name, OVER_IPV6).await;
        let what = ["--container", &container.pid(), "--to", "fd96::/16"];
        followers.push(Follower::start(&outside.attached, &what).await);
        containers.push(container);
    }
    let before = outside.attached.counter("answered-directly").await;
    for container in &mut containers {
        container.go().await;
    }
    for container in &mut containers {
        assert_eq!(container.rest().await, ["good: 600"], "{}", container.cgroup);
    }
    let direct = outside.attached.counter("answered-directly").await - before;
    assert!(direct > 1000, "{direct} of 1,200");
    for follower in followers {
        assert!(follower.ended().await.success());
    }
    let cgroups: Vec<_> = containers.iter().map(|one| one.cgroup.clone()).collect();
    outside.nothing_left(&cgroups).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_replaced_containers_leave_nothing() {
    let _machine = beside_others().await;
    let Some(outside) = Outside::start("replaced").await else { return };
    let mut beside = outside.container("beside", &EQUAL.replace("COUNT", "2000")).await;
    let follower = outside.follow(&beside).await;
    beside.go().await;
    for _ in 0..if is_soak() { 100 } else { 4 } {
        let mut container = outside.container("replaced", ENDLESS).await;
        let follower = outside.follow(&container).await;
        container.go().await;
        assert_eq!(container.line().await, "called");
        container.process.kill().await.unwrap();
        assert!(follower.ended().await.success());
    }
    assert_eq!(beside.rest().await, ["good: 2000"]);
    assert!(follower.ended().await.success());
    outside.nothing_left(&[beside.cgroup, format!("{}-replaced", outside.attached.cgroup)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_is_served_until_its_last_process_ends() {
    let _machine = beside_others().await;
    let Some(outside) = Outside::start("last").await else { return };
    let mut container = outside.container("last", INHERITED).await;
    let follower = outside.follow(&container).await;
    container.go().await;
    // `wait` would close it.
    let stdin = container.process.stdin.take();
    timeout(PATIENCE, container.process.wait()).await.unwrap().unwrap();
    container.process.stdin = stdin;
    container.go().await;
    assert_eq!(container.line().await, "called");
    let status = outside.attached.status().await;
    let mut attachments = status["attachments"].as_array().unwrap().iter();
    assert!(attachments.any(|one| one["cgroup"] == container.cgroup.as_str()), "{status}");
    container.go().await;
    assert!(follower.ended().await.success());
    outside.nothing_left(&[container.cgroup]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_below_attached_cgroup_are_followed() {
    let _machine = beside_others().await;
    let Some(outside) = Outside::start("below").await else { return };
    let parent = format!("{}-pods", outside.attached.cgroup);
    let follower = Follower::start(&outside.attached, &["--all-below", &format!("/{parent}//")]).await;
    for round in 0..2 {
        let mut containers = Vec::new();
        for name in ["one", "two"] {
            let script = EQUAL.replace("COUNT", "1000");
            containers.push(Container::start(name, format!("{parent}/{name}{round}/inner"), &script).await);
        }
        until("the proxy listens in both", async || outside.attached.status().await["namespaces"] == 2).await;
        for container in &mut containers {
            container.go().await;
        }
        for container in &mut containers {
            assert_eq!(container.rest().await, ["good: 1000"], "{}", container.cgroup);
        }
        until("the proxy listens in neither", async || outside.attached.status().await["namespaces"] == 0)
            .await;
    }
    let again = format!("{}-again", outside.attached.cgroup);
    let replaced = Follower::start(&outside.attached, &["--all-below", &again]).await;
    replaced.replace(&again);
    assert_eq!(replaced.ended().await.code(), Some(1));
    outside.attached.kernel(&["detach"]).await.ok();
    assert!(follower.ended().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgraded_and_restarted_proxy_serves_containers() {
    let _machine = beside_others().await;
    let Some(attached) = prepared("upgraded").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let place = Place::new(&world);
    let listen = format!(
        " {WITHOUT_LOG} --drain-deadline 5s --listen kernel:127.0.0.1:{}+bpffs={}",
        free_port(),
        attached.pins().display()
    );
    let mut first = place.proxy("first", &listen);
    place.ready().await;
    let mut container = Container::start("upgraded", format!("{}-upgraded", attached.cgroup), FRESH).await;
    let servers = ["--container", &container.pid(), "--servers", &server.cgroup];
    let follower = Follower::start(&attached, &servers).await;
    container.go().await;
    assert_eq!(container.line().await, "called");

    let mut second = place.proxy("second", &listen);
    until("the predecessor has drained", async || first.has_ended().is_some()).await;
    container.go().await;
    let said = container.rest().await;
    assert!(said.len() == 1 && said[0].starts_with("good: "), "no connection failed: {said:?}");
    assert!(follower.ended().await.success());

    // A proxy that was killed passes nothing on: the command opens another listener for its successor.
    let mut container = Container::start("restarted", format!("{}-restarted", attached.cgroup), FRESH).await;
    let follower = Follower::start(&attached, &["--container", &container.pid()]).await;
    second.kill().await;
    let _third = place.proxy("third", &listen);
    place.ready().await;
    until("the proxy listens in the container", async || attached.status().await["namespaces"] == 1).await;
    container.go().await;
    assert_eq!(container.line().await, "called");
    container.go().await;
    assert!(container.rest().await.iter().all(|line| line.starts_with("good: ")));
    assert!(follower.ended().await.success());
}
