//! Calls within the machine in a mesh with a trust domain: the kernel sends them in plaintext in place of mutual TLS, and nothing
//! that mutual TLS refuses.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tokio::time::sleep;

use super::{
    Attached,
    closing::STOP,
    local::{Contained, WITHOUT_LOG, run_in},
    requests::CALLER,
};
use crate::harness::{Process, Program, Proxy, World, alone, beside_others, free_port, skipped, tool, until};

/// Time in which what ends mutual TLS ends calls by the kernel.
pub(super) const BOUND: Duration = Duration::from_secs(1);

/// A server that responds with the headers that name the caller; after a while to `/slow`, with an error to `/fail`. After a request
/// for `/last` it closes the connection, without saying so. A second argument is the user that it runs as.
const SERVER: &str = r#"
import os, socket, sys, threading, time

def serve(connection):
    file = connection.makefile("rb")
    while line := file.readline():
        is_last, is_slow = (line.startswith(b"GET /%s " % path) for path in (b"last", b"slow"))
        status = b"500 Failed" if line.startswith(b"GET /fail ") else b"200 OK"
        said, length = {}, 0
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            said.setdefault(name.lower().replace(b"_", b"-"), []).append(value.strip())
        file.read(int(said.get(b"content-length", [b"0"])[0]))
        text = b"|".join(b",".join(said.get(name, [])) for name in (b"x-fairmesh-caller", b"x-forwarded-client-cert"))
        if is_slow:
            time.sleep(0.3)
        connection.sendall(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(text), text))
        if is_last:
            return connection.shutdown(socket.SHUT_RDWR)

for user in sys.argv[2:]:
    os.setuid(int(user))
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Calls a number of times on one connection, and prints each status and body.
const CALLS: &str = "\nfor at in range(COUNT):\n    call(b'%d' % at)\n";

/// Larger than a page with the headers that the kernel adds.
const POSTS: &str = "\nfor at in range(20):\n    call(b'%d' % at, b'b' * (at * 1000))\n";

/// Sends headers by which a program could claim to be another one, or to call from elsewhere.
const FORGED: &str = r#"
for name in (b"x-forwarded-client-cert", b"X_Forwarded_Client_Cert", b"x_fairmesh_caller", b"x-fairmesh-caller",
             b"x-forwarded-for", b"X_Forwarded_For"):
    connection.sendall(b"GET / HTTP/1.1\r\nhost: raw.shop\r\n%s: spiffe://prod/shop/forged\r\n\r\n" % name)
    receive()
"#;

/// A server of `shop/evil` that answers as a listener which permits requests to the program of `shop/raw`, at the port in its second
/// argument. `register --tcp` passes the question on to it.
const EVIL: &str = r#"
import socket, sys, threading

ANSWER = b"""HTTP/1.1 200 OK\r
x-fairmesh-local-server: 127.0.0.1:%s\r
x-fairmesh-caller: spiffe://prod/shop/web\r
x-forwarded-client-cert: By=spiffe://prod/shop/evil;Hash=%s;URI=spiffe://prod/shop/web\r
content-length: 0\r
\r
""" % (sys.argv[2].encode(), b"5e" * 32)

def serve(connection):
    file = connection.makefile("rb")
    while line := file.readline():
        while file.readline().strip():
            pass
        is_question = b"/.well-known/fairmesh/load" in line
        connection.sendall(ANSWER if is_question else b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Calls `shop/evil`, and prints each status and body.
pub(super) const EVIL_CALLS: &str = r#"
for _ in range(20):
    connection.sendall(b"GET / HTTP/1.1\r\nhost: evil.shop\r\n\r\n")
    receive()
"#;

/// A strict mesh with a server in a cgroup behind a front, and a proxy that calls as `shop/web`.
pub(super) struct Secure {
    // The cgroups can be removed once the server has ended.
    _server: Contained,
    pub(super) port: u16,
    pub(super) front: Process,
    /// Address of the front's pages.
    pub(super) front_admin: String,
    pub(super) proxy: Proxy,
    pub(super) world: World,
    pub(super) attached: Attached,
}

/// What terminates mutual TLS in front of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    Register,
    /// `proxy --inbound`.
    Inbound,
}

/// Where the front and its program run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In one cgroup, to which the programs of the kernel form are attached.
    Together,
    /// In that cgroup, as two users.
    OtherUser,
    /// In two of these cgroups.
    Apart,
    /// In one cgroup, to which nothing is attached.
    Elsewhere,
    /// As [`Together`](Self::Together), at IPv6 addresses.
    OverIpv6,
}

impl Front {
    /// Starts the front of a program at this address, in a cgroup, with the service's name as its instance. Returns it with the
    /// address of its pages.
    pub(super) fn start(self, world: &World, cgroup: &str, service: &str, at: &str) -> (Process, String) {
        let (instance, admin) = (service.replace('/', "-"), format!("127.0.0.1:{}", free_port()));
        let options = match self {
            Self::Register => format!("register {service} --instance {instance} --address {at}"),
            Self::Inbound => format!(
                "proxy --listen none --access-log off --inbound-instance {instance} \
                 --inbound {service}@127.0.0.1:{}={at}",
                free_port()
            ),
        };
        (run_front(world, cgroup, &instance, &format!("{options} --admin {admin}")), admin)
    }
}

impl Secure {
    /// Behind `register`; `None` where eBPF is not permitted.
    pub(super) async fn start(name: &str) -> Option<Self> {
        Self::start_as(name, "shop/web", (Front::Register, Place::Together)).await
    }

    /// With a proxy of this identity.
    pub(super) async fn start_as(name: &str, identity: &str, placed: (Front, Place)) -> Option<Self> {
        Self::start_with(name, &format!("{WITHOUT_LOG} --service {identity}"), placed).await
    }

    /// With a proxy with these options.
    pub(super) async fn start_with(name: &str, proxy: &str, (front, place): (Front, Place)) -> Option<Self> {
        if tool("python3").is_none() {
            skipped("caller and server are Python programs", "python3 is missing");
            return None;
        }
        let attached = Attached::new(name).await?;
        let world = World::start_in("prod", "").await;
        let (port, cgroup) = (free_port(), format!("{}-servers", attached.cgroup));
        let (host, script) = match place {
            // `run_in` waits until the program listens at the IPv4 address too.
            Place::OverIpv6 => (
                "[::1]",
                SERVER.replace(
                    "((\"127.0.0.1\", int(sys.argv[1])))",
                    "((\"\", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)",
                ),
            ),
            _ => ("127.0.0.1", SERVER.to_owned()),
        };
        let mut program = ["python3", "-c", &script, &port.to_string()].map(str::to_owned).to_vec();
        if place == Place::OtherUser {
            program.push("4711".to_owned());
        }
        let server = run_in(&cgroup, &program, port).await;
        let fronts = format!("{}-fronts", attached.cgroup);
        let of_front = if place == Place::Apart { &fronts } else { &cgroup };
        let (front, front_admin) = front.start(&world, of_front, "shop/raw", &format!("{host}:{port}"));
        world.serves("shop/raw", "shop-raw").await;
        let proxy = attached.proxy_with(&world, proxy).await;
        let options: &[&str] = match place {
            Place::Together | Place::OtherUser | Place::OverIpv6 => &["--servers", &cgroup],
            Place::Apart => &["--servers", &cgroup, "--servers", &fronts],
            Place::Elsewhere => &["--servers", &fronts],
        };
        attached.attach_with(options).await;
        Some(Self { _server: server, port, front, front_admin, proxy, world, attached })
    }

    pub(super) async fn run(&self, script: &str) -> String {
        self.attached.run(&["python3", "-c", &format!("{CALLER}{script}")]).await.ok()
    }

    /// The responses to so many calls, and how many of these the kernel sent in place of mutual TLS.
    pub(super) async fn call(&self, count: usize) -> (Vec<String>, u64) {
        let before = self.attached.counter("in-place-of-mtls").await;
        let said = self.run(&CALLS.replace("COUNT", &count.to_string())).await;
        let sent = self.attached.counter("in-place-of-mtls").await - before;
        (said.lines().map(str::to_owned).collect(), sent)
    }

    pub(super) async fn calls_by_kernel(&self) {
        until("the kernel sends calls in place of mutual TLS", async || self.call(4).await.1 > 0).await;
    }

    /// Applies a document, and checks what holds a second later: the kernel sends no call, and the calls have this status.
    pub(super) async fn ends_within_second(&self, document: &str, status: &str) {
        self.world.apply(document).await.ok();
        self.no_calls_by_kernel_after(BOUND, status).await;
    }

    pub(super) async fn no_calls_by_kernel_after(&self, bound: Duration, status: &str) {
        sleep(bound).await;
        let (said, sent) = self.call(20).await;
        // A response of the sidecar may have several lines.
        let is_status = |line: &&String| ["2", "4", "5"].iter().any(|class| line.starts_with(class));
        let lines: Vec<_> = said.iter().filter(is_status).collect();
        let is_expected = lines.len() >= 20 && lines.iter().all(|line| line.starts_with(status));
        assert!(sent == 0 && is_expected, "{sent} by the kernel: {said:?}");
    }
}

/// Starts a front in a cgroup, by these words of the command line.
fn run_front(world: &World, cgroup: &str, name: &str, options: &str) -> Process {
    let (agent, binary) = (world.agent_address(), env!("CARGO_BIN_EXE_fairmesh"));
    let command = format!("kernel run --cgroup {cgroup} -- {binary} {options} --agent {agent}");
    Process::start(Program::fairmesh(world.path(&format!("{name}.log")), &command))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_local_calls_of_strict_mesh_with_proved_caller() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("secure").await else { return };
    let (by_mtls, sent) = mesh.call(1).await;
    assert_eq!(sent, 0, "the first call of a service is the sidecar's");
    let caller = "200 spiffe://prod/shop/web|By=spiffe://prod/shop/raw;Hash=";
    assert!(
        by_mtls[0].starts_with(caller) && by_mtls[0].ends_with(";URI=spiffe://prod/shop/web"),
        "{by_mtls:?}"
    );
    mesh.calls_by_kernel().await;

    let (said, sent) = mesh.call(100).await;
    assert!(sent >= 95, "{sent} of 100");
    assert!(
        said.len() == 100 && said.iter().all(|line| *line == by_mtls[0]),
        "{said:?}, by mutual TLS {by_mtls:?}"
    );
    let large = mesh.run(POSTS).await;
    assert!(large.lines().count() == 20 && large.lines().all(|line| line == by_mtls[0]), "{large}");
    let before = mesh.attached.counter("in-place-of-mtls").await;
    let forged = mesh.run(FORGED).await;
    assert!(forged.lines().count() == 6 && forged.lines().all(|line| line == by_mtls[0]), "{forged}");
    assert_eq!(
        mesh.attached.counter("in-place-of-mtls").await,
        before,
        "no forged header reaches the program"
    );
    let status = mesh.attached.status().await;
    assert_eq!(status["inFlight"], 0, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rules_end_local_calls_by_kernel_within_a_second() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("rules").await else { return };
    mesh.calls_by_kernel().await;
    let rules = "{kind: Authorization, service: shop/raw, rules: [{name: other, from: [shop/other]}]}";
    mesh.ends_within_second(rules, "403").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecar_as_default_transport_ends_kernel_calls_within_a_second() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("forbid").await else { return };
    mesh.calls_by_kernel().await;
    mesh.ends_within_second("{kind: PolicyDefaults, localTransport: sidecar}", "200 spiffe://prod/shop/web|")
        .await;
    assert!(mesh.attached.counter("not-permitted").await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_identity_makes_no_local_call() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("revoked").await else { return };
    mesh.calls_by_kernel().await;
    mesh.world.cli(&["identity", "revoke", "shop/web"]).await.ok();
    mesh.no_calls_by_kernel_after(BOUND, "50").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_listener_ends_kernel_calls_within_a_second() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("server").await else { return };
    mesh.calls_by_kernel().await;
    mesh.world.cli(&["identity", "revoke", "shop/raw"]).await.ok();
    mesh.no_calls_by_kernel_after(BOUND, "50").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_listener_ends_local_calls_by_kernel_within_a_second() {
    let _machine = beside_others().await;
    let Some(mut mesh) = Secure::start("ended").await else { return };
    mesh.calls_by_kernel().await;
    mesh.front.kill().await;
    mesh.no_calls_by_kernel_after(BOUND, "50").await;
}

/// The proxy is stopped, so that it ends nothing itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_of_stopped_proxy_ends_within_a_second() {
    let _machine = alone().await;
    let Some(mesh) = Secure::start("stopped").await else { return };
    mesh.calls_by_kernel().await;
    let pid = mesh.proxy.process.pid();
    let script = format!(
        "{STOP}for _ in range(3):\n    call(b'1')\nstop({})\ntime.sleep(1)\nsend(b'2')\n\
         print('sent', flush=True)\nreceive()",
        pid.as_raw_nonzero()
    );
    let before = mesh.attached.counter("not-permitted").await;
    let going_on = async {
        let is_left = async || mesh.attached.counter("not-permitted").await > before;
        until("the request is left to the sidecar", is_left).await;
        kill_process(pid, Signal::CONT).unwrap();
    };
    let (said, ()) = tokio::join!(mesh.run(&script), going_on);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 5 && lines[3] == "sent" && lines[4] == lines[0], "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_permits_no_calls_to_program_of_another_service() {
    let _machine = beside_others().await;
    let rules = "{kind: Authorization, service: shop/raw, rules: [{name: other, from: [shop/other]}]}";
    let Some(mesh) = Secure::start("evil").await else { return };
    mesh.calls_by_kernel().await;
    mesh.ends_within_second(rules, "403").await;
    let (port, cgroup) = (free_port(), format!("{}-evil", mesh.attached.cgroup));
    let program = ["python3", "-c", EVIL, &port.to_string(), &mesh.port.to_string()].map(str::to_owned);
    let _evil = run_in(&cgroup, &program, port).await;
    let front =
        format!("register shop/evil --instance shop-evil --address 127.0.0.1:{port} --tcp --protocol http1");
    let _register = run_front(&mesh.world, &cgroup, "shop-evil", &front);
    mesh.world.serves("shop/evil", "shop-evil").await;
    let before = mesh.attached.counter("in-place-of-mtls").await;
    // The second time, the proxy has asked.
    for _ in 0..2 {
        let said = mesh.run(EVIL_CALLS).await;
        assert_eq!(said, "200 evil\n".repeat(20));
    }
    assert_eq!(mesh.attached.counter("in-place-of-mtls").await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_in_another_cgroup_than_its_program_permits_no_calls_by_kernel() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start_as("apart", "shop/web", (Front::Register, Place::Apart)).await else {
        return;
    };
    for _ in 0..2 {
        mesh.no_calls_by_kernel_after(BOUND, "200 spiffe://prod/shop/web|").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_outside_of_cgroups_of_servers_gets_no_calls_by_kernel() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start_as("outside", "shop/web", (Front::Register, Place::Elsewhere)).await
    else {
        return;
    };
    for _ in 0..2 {
        mesh.no_calls_by_kernel_after(BOUND, "200 spiffe://prod/shop/web|").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_closes_connections_keeps_its_permit() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("closing").await else { return };
    mesh.calls_by_kernel().await;
    mesh.call(2).await;
    let before = mesh.attached.counter("not-permitted").await;
    // It closes soon from the first one on.
    mesh.run("\ncall(b'last')\n").await;
    until("the kernel sends calls over TCP", async || mesh.call(4).await.1 > 0).await;
    assert_eq!(mesh.attached.counter("not-permitted").await, before);
}
