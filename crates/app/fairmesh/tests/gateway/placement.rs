//! A gateway with backends: what replicas refuse, and how nodes react when replicas, backends and a zone fail.

use std::{net::SocketAddr, time::Duration};

use fairmesh_test_support::{Process, Program, eventually_async as until, free_port};
use fairmesh_wire::transport::ExpectedPeer;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    time::timeout,
};

use crate::mesh::{Mesh, dial, exchange, header, serve_pod};

/// Time limit of a new call while replicas fail.
const FAILOVER: Duration = Duration::from_secs(5);
/// Calls after each failure: more than there are replicas, so that each replica receives some.
const CALLS: usize = 12;
/// Address of the calling pod; all of 127.0.0.0/8 is on loopback.
const POD: &str = "127.0.1.2";
/// Backends and their zones. Backend `a1` has two replicas.
const BACKENDS: [(&str, &str); 5] = [("a1", "a"), ("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")];

/// A mesh whose gateway has backends, with a separate node for a calling pod.
struct Placed {
    mesh: Mesh,
    replicas: Vec<(&'static str, SocketAddr, Process)>,
    virtual_address: SocketAddr,
    _node: Process,
}

fn at(ip: [u8; 4]) -> SocketAddr {
    (ip, free_port()).into()
}

impl Placed {
    async fn start() -> Option<Self> {
        let mesh = Mesh::start(serve_pod().await).await?;
        let virtual_address = at([127, 0, 0, 9]);
        let replicas = BACKENDS.map(|(backend, _)| (backend, at([127, 0, 0, 1])));
        let mut records = format!(
            "{{kind: Service, name: red/web, virtualAddress: '{virtual_address}'}}\n---\n{{kind: GatewayService, service: red/web, homeZone: a}}\n"
        );
        for (name, zone) in BACKENDS.into_iter().skip(1) {
            let of = replicas.iter().filter(|(backend, _)| *backend == name);
            let addresses: Vec<String> = of.map(|(_, address)| format!("'{address}'")).collect();
            let addresses = addresses.join(", ");
            records += &format!(
                "---\n{{kind: GatewayBackend, name: {name}, zone: {zone}, replicas: [{addresses}]}}\n"
            );
        }
        mesh.cli(&["apply", "-f", "-"], &records).await.ok();
        let replicas = replicas.into_iter().enumerate().map(|(number, (backend, address))| {
            let args = format!(
                "gateway --agent {} --listen {address} --admin none --cores 1 --backend {backend}",
                mesh.agent_of("edge")
            );
            let log = mesh.path(&format!("replica-{number}.log"));
            (backend, address, Process::start(Program::fairmesh(log, &args)))
        });
        let replicas: Vec<_> = replicas.collect();
        until("red/web is placed", async || backends_of_web(&mesh).await.len() == 3).await;
        let placed = backends_of_web(&mesh).await;
        // The node is configured with a replica that does not serve red/web.
        let other = replicas.iter().find(|(backend, ..)| !placed.iter().any(|one| one == backend)).unwrap().1;
        let args = format!(
            "node --agent {} --gateway {other} --capture 0.0.0.0:{} --admin none --pod red/client={POD}",
            mesh.agent_of("red"),
            virtual_address.port()
        );
        let node = Process::start(Program::fairmesh(mesh.path("caller.log"), &args));
        let this = Self { mesh, replicas, virtual_address, _node: node };
        until("red reaches its web", async || this.call(this.virtual_address).await.contains("red/web for"))
            .await;
        Some(this)
    }

    /// Calls through the node as the pod.
    async fn call(&self, destination: SocketAddr) -> String {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{POD}:0").parse().unwrap()).unwrap();
        let called = async {
            let mut stream = socket.connect(destination).await?;
            stream.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.map(|_| answer)
        };
        match timeout(FAILOVER, called).await {
            Ok(answer) => answer.unwrap_or_else(|error| error.to_string()),
            Err(_) => "no answer in time".into(),
        }
    }

    async fn assert_all_succeed(&self, after: &str) {
        for _ in 0..CALLS {
            let answer = self.call(self.virtual_address).await;
            assert!(answer.ends_with("red/web for spiffe://prod/red/client"), "{after}: {answer}");
        }
    }

    /// Calls a replica directly, as a node would.
    async fn call_replica(&self, replica: SocketAddr, destination: SocketAddr) -> String {
        let red = self.mesh.identity("red", "red/client").await;
        let mut stream = dial(&red, replica, ExpectedPeer::Gateway).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: web.red\r\nconnection: close\r\n\r\n";
        exchange(&mut stream, &[&header(destination)[..], request].concat()).await
    }

    fn of<'a>(&'a mut self, names: &'a [&str]) -> impl Iterator<Item = &'a mut Process> {
        let of = self.replicas.iter_mut().filter(|(backend, ..)| names.contains(backend));
        of.map(|(_, _, process)| process)
    }
}

async fn backends_of_web(mesh: &Mesh) -> Vec<String> {
    let listed = mesh.cli(&["get", "gateway-services", "red/web", "-o", "json"], "").await.json();
    let zones = listed[0]["placement"]["zones"].as_object().cloned().unwrap_or_default();
    let names = zones.values().filter_map(|names| names.as_array()).flatten();
    names.filter_map(|name| name.as_str()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_replica_answers_421_for_services_of_other_backends() {
    let Some(placed) = Placed::start().await else { return };
    let backends = backends_of_web(&placed.mesh).await;
    for (backend, replica, _) in &placed.replicas {
        // By the virtual address, and by host at another address.
        for destination in [placed.virtual_address, ([127, 0, 0, 8], 80).into()] {
            let answer = placed.call_replica(*replica, destination).await;
            if backends.iter().any(|one| one == backend) {
                assert!(answer.ends_with("red/web for spiffe://prod/red/client"), "{backend}: {answer}");
            } else {
                assert!(answer.starts_with("HTTP/1.1 421 "), "{backend}: {answer}");
                assert!(answer.contains("x-fairmesh-placed: red/web"), "{backend}: {answer}");
            }
        }
    }
    // The configured replica refuses a request by host; the node retries it at a replica that serves the service.
    let by_host = SocketAddr::from(([127, 0, 0, 8], placed.virtual_address.port()));
    let answer = placed.call(by_host).await;
    assert!(answer.ends_with("red/web for spiffe://prod/red/client"), "{answer}");
    let status = placed.mesh.cli(&["gateway", "status"], "").await.ok();
    assert!(status.contains("red/web") && status.contains("b2"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_calls_continue_when_replica_backend_or_zone_fails() {
    let Some(mut placed) = Placed::start().await else { return };
    let before = backends_of_web(&placed.mesh).await;
    // Kills one of the two replicas of backend `a1`.
    placed.replicas[0].2.kill().await;
    placed.assert_all_succeed("a replica was killed").await;
    placed.replicas[1].2.kill().await;
    placed.assert_all_succeed("a backend was killed").await;
    // Stops all replicas of a zone: the system still accepts connections, but nothing answers.
    placed.of(&["a2"]).for_each(|replica| replica.signal(Signal::STOP));
    placed.assert_all_succeed("a zone was cut off").await;
    assert_eq!(backends_of_web(&placed.mesh).await, before, "nothing moves");
    placed.of(&["a2"]).for_each(|replica| replica.signal(Signal::CONT));
    placed.of(&["b1", "b2"]).for_each(|replica| replica.signal(Signal::KILL));
    placed.assert_all_succeed("the other zone was killed").await;
}
