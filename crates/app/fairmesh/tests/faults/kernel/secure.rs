//! Calls within the machine in a mesh with a trust domain: the kernel sends them in plaintext in place of mutual TLS, and nothing
//! that mutual TLS refuses.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    Attached,
    local::{Contained, WITHOUT_LOG, run_in},
    requests::CALLER,
};
use crate::harness::{Process, Program, Proxy, World, beside_others, free_port, skipped, tool, until};

/// Time in which what ends mutual TLS ends calls by the kernel.
const BOUND: Duration = Duration::from_secs(1);

/// A server that responds with the headers that name the caller.
const SERVER: &str = r#"
import socket, sys, threading

def serve(connection):
    file = connection.makefile("rb")
    while line := file.readline():
        said, length = {}, 0
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            said.setdefault(name.lower().replace(b"_", b"-"), []).append(value.strip())
        file.read(int(said.get(b"content-length", [b"0"])[0]))
        text = b"|".join(b",".join(said.get(name, [])) for name in (b"x-fairmesh-caller", b"x-forwarded-client-cert"))
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))

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

/// A strict mesh with a server in a cgroup behind `register`, and a proxy that calls as `shop/web`.
struct Secure {
    // The cgroups can be removed once the server has ended.
    _server: Contained,
    _register: Process,
    _proxy: Proxy,
    world: World,
    attached: Attached,
}

impl Secure {
    /// `None` where eBPF is not permitted.
    async fn start(name: &str, yaml: &str) -> Option<Self> {
        if tool("python3").is_none() {
            skipped("caller and server are Python programs", "python3 is missing");
            return None;
        }
        let attached = Attached::new(name).await?;
        let world = World::start_in("prod", yaml).await;
        let (port, cgroup) = (free_port(), format!("{}-servers", attached.cgroup));
        let (agent, address) = (world.agent_address().to_string(), format!("127.0.0.1:{port}"));
        let program = ["python3", "-c", SERVER, &port.to_string()].map(str::to_owned);
        let server = run_in(&cgroup, &program, port).await;
        let register = format!("register shop/raw --instance raw-1 --agent {agent} --address {address}");
        let register = Process::start(Program::fairmesh(world.path("register.log"), &register));
        world.serves("shop/raw", "raw-1").await;
        let proxy = attached.proxy_with(&world, &format!("{WITHOUT_LOG} --service shop/web")).await;
        attached.attach_with(&["--servers", &cgroup]).await;
        Some(Self { _server: server, _register: register, _proxy: proxy, world, attached })
    }

    async fn run(&self, script: &str) -> String {
        self.attached.run(&["python3", "-c", &format!("{CALLER}{script}")]).await.ok()
    }

    /// The responses to so many calls, and how many of these the kernel sent in place of mutual TLS.
    async fn call(&self, count: usize) -> (Vec<String>, u64) {
        let before = self.attached.counter("in-place-of-mtls").await;
        let said = self.run(&CALLS.replace("COUNT", &count.to_string())).await;
        let sent = self.attached.counter("in-place-of-mtls").await - before;
        (said.lines().map(str::to_owned).collect(), sent)
    }

    async fn calls_by_kernel(&self) {
        until("the kernel sends calls in place of mutual TLS", async || self.call(4).await.1 > 0).await;
    }

    /// Applies a document, and checks what holds a second later: the kernel sends no call, and the calls have this status.
    async fn ends_within_second(&self, document: &str, status: &str) {
        self.world.apply(document).await.ok();
        self.no_calls_by_kernel_after(BOUND, status).await;
    }

    async fn no_calls_by_kernel_after(&self, bound: Duration, status: &str) {
        sleep(bound).await;
        let (said, sent) = self.call(20).await;
        // A response of the sidecar may have several lines.
        let is_status = |line: &&String| ["2", "4", "5"].iter().any(|class| line.starts_with(class));
        let lines: Vec<_> = said.iter().filter(is_status).collect();
        let is_expected = lines.len() >= 20 && lines.iter().all(|line| line.starts_with(status));
        assert!(sent == 0 && is_expected, "{sent} by the kernel: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_local_calls_of_strict_mesh_with_proved_caller() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("secure", "").await else { return };
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
    let Some(mesh) = Secure::start("rules", "").await else { return };
    mesh.calls_by_kernel().await;
    let rules = "{kind: Authorization, service: shop/raw, rules: [{name: other, from: [shop/other]}]}";
    mesh.ends_within_second(rules, "403").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecar_as_default_transport_ends_kernel_calls_within_a_second() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("forbid", "").await else { return };
    mesh.calls_by_kernel().await;
    mesh.ends_within_second("{kind: PolicyDefaults, localTransport: sidecar}", "200 spiffe://prod/shop/web|")
        .await;
    assert!(mesh.attached.counter("not-permitted").await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_identity_makes_no_local_call() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("revoked", "").await else { return };
    mesh.calls_by_kernel().await;
    mesh.world.cli(&["identity", "revoke", "shop/web"]).await.ok();
    mesh.no_calls_by_kernel_after(BOUND, "50").await;
}
