//! Replicas of one backend on machines of their own, behind a router.

use std::{fs, io, mem, path::PathBuf};

use fairmesh_test_support::{
    PATIENCE, Process, Program, eventually_async as until,
    namespaces::{Namespace, remove_orphans},
    skipped,
};
use fairmesh_wire::transport::{ExpectedPeer, Stream, Transport};
use futures_util::future::join_all;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Handle,
    time::{Instant, timeout, timeout_at},
};

use crate::mesh::{Mesh, dial, header, page, serve_pod};

const ENTRY: &str = "10.99.0.1:7440";
const BRIDGE: &str = "bridge0";
/// The machine of the pods, the control plane and this test.
const CLIENT: &str = "10.1.0.2";
const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nhost: echo\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
/// Connections that are opened at the same time.
const AT_ONCE: usize = 50;

/// A replica with its machine; the process first, so that it ends first.
struct Replica {
    process: Process,
    number: u8,
    machine: Namespace,
    /// Whether the router knows its machine.
    is_routed: bool,
    predecessor: Option<Process>,
}

/// Fields drop in order.
pub(crate) struct Fleet {
    name: &'static str,
    replicas: Vec<Replica>,
    _node: Process,
    pub(crate) mesh: Mesh,
    pod: Transport,
    pins: Pins,
    router: Namespace,
    _client: Namespace,
}

/// A directory of pins, removed on drop: those of a replica that was killed stay.
struct Pins(PathBuf);

impl Pins {
    fn list(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.list().iter().for_each(|pin| drop(fs::remove_file(pin)));
        let _ = fs::remove_dir(&self.0);
    }
}

/// A connection of a pod through a replica to a server that echoes.
pub(crate) struct Flow {
    stream: Stream,
    sent: u64,
}

/// The router and the machine of the client, which this thread enters: its sockets and processes are there.
fn network(name: &str) -> Result<(Namespace, Namespace), String> {
    remove_orphans();
    let (router, client) = (Namespace::new(&format!("{name}-r"))?, Namespace::new(&format!("{name}-c"))?);
    router.ip(&["link", "add", "name", BRIDGE, "type", "bridge"])?;
    router.ip(&["addr", "add", "10.77.0.254/24", "dev", BRIDGE])?;
    router.ip(&["link", "set", BRIDGE, "up"])?;
    router.within(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .and_then(|()| fs::write("/proc/sys/net/ipv4/fib_multipath_hash_policy", "1"))
            .map_err(|error| error.to_string())
    })?;
    cable(&router, "client", (&client, &format!("{CLIENT}/24")))?;
    router.ip(&["addr", "add", "10.1.0.1/24", "dev", "client"])?;
    client.ip(&["route", "add", "default", "via", "10.1.0.1"])?;
    client.enter();
    Ok((router, client))
}

fn cable(router: &Namespace, name: &str, (host, address): (&Namespace, &str)) -> Result<(), String> {
    router.ip(&["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", host.name()])?;
    router.ip(&["link", "set", name, "up"])?;
    host.ip(&["link", "set", "lo", "up"])?;
    host.ip(&["addr", "add", address, "dev", "eth0"])?;
    host.ip(&["link", "set", "eth0", "up"])
}

impl Fleet {
    /// Starts two replicas, and a pod that echoes. `None` if this process may not.
    pub(crate) async fn start(name: &'static str) -> Option<Self> {
        let (router, client) = match network(name) {
            Ok(network) => network,
            Err(problem) => {
                skipped("machines cannot be made", problem);
                return None;
            }
        };
        let echo = serve_pod().await;
        let mesh = Mesh::start(echo).await?;
        mesh.cli(&["apply", "-f", "-"], "{kind: Service, name: red/echo}").await.ok();
        let node = format!(
            "node --agent {} --gateway {ENTRY} --capture 127.0.0.9:7431 --admin none --pod red/echo@{CLIENT}:7432={echo}",
            mesh.agent_of("red")
        );
        let node = Process::start(Program::fairmesh(mesh.path("echo-node.log"), &node));
        let pod = mesh.identity("red", "red/client").await;
        let pins = Pins(PathBuf::from(format!("/sys/fs/bpf/fairmesh-entry-{}-{name}", std::process::id())));
        let mut fleet =
            Self { name, replicas: Vec::new(), _node: node, mesh, pod, pins, router, _client: client };
        for number in [1, 2] {
            fleet.add(number).await;
        }
        until("the pod answers", async || {
            timeout(PATIENCE, fleet.open_one()).await.is_ok_and(|one| one.is_ok())
        })
        .await;
        Some(fleet)
    }

    fn program(&self, number: u8) -> Program {
        let args = format!(
            "gateway --agent {} --listen 10.77.0.{number}:7440 --admin 10.77.0.{number}:7441 --cores 1 --client-id gw/{number} \
             --backend gw-1 --entry {ENTRY} --entry-interface eth0 --entry-bpffs {} --drain-deadline 10m --handover {}",
            self.mesh.agent_of("edge"),
            self.pins.0.display(),
            self.mesh.path(&format!("handover-{number}.sock")).display()
        );
        Program::fairmesh(self.mesh.path(&format!("replica-{number}.log")), &args)
    }

    /// Starts a replica, then lists it in the record of the backend, then at the router.
    pub(crate) async fn add(&mut self, number: u8) {
        let machine = Namespace::new(&format!("{}-{number}", self.name)).unwrap();
        let link = format!("m{number}");
        cable(&self.router, &link, (&machine, &format!("10.77.0.{number}/24"))).unwrap();
        self.router.ip(&["link", "set", &link, "master", BRIDGE]).unwrap();
        machine.ip(&["addr", "add", "10.99.0.1/32", "dev", "lo"]).unwrap();
        machine.ip(&["route", "add", "default", "via", "10.77.0.254"]).unwrap();
        let program = self.program(number);
        let handle = Handle::current();
        let process = machine.within(|| {
            let _runtime = handle.enter();
            Process::start(program)
        });
        self.replicas.push(Replica { process, number, machine, is_routed: false, predecessor: None });
        self.is_ready(number).await;
        self.declare().await;
        self.replicas.last_mut().unwrap().is_routed = true;
        self.route();
    }

    /// Writes the record of the backend, and waits until the replicas that accept have it.
    async fn declare(&self) {
        let addresses: Vec<_> =
            self.replicas.iter().map(|one| format!("'10.77.0.{}:7440'", one.number)).collect();
        let record =
            format!("{{kind: GatewayBackend, name: gw-1, zone: a, replicas: [{}]}}", addresses.join(", "));
        self.mesh.cli(&["apply", "-f", "-"], &record).await.ok();
        until("all replicas report their shares", async || {
            let status = self.mesh.cli(&["gateway", "status", "--json"], "").await.json();
            let entries = status[0]["entry"].as_array().cloned().unwrap_or_default();
            let accepting =
                self.replicas.iter().filter(|one| one.is_routed || Some(one.number) == self.last());
            let fair = 1.0 / self.replicas.len() as f64;
            let is_fair = |share: f64| (fair * 0.8..=fair * 1.2).contains(&share);
            accepting.into_iter().all(|one| {
                let address = format!("10.77.0.{}:7440", one.number);
                let entry = entries.iter().find(|entry| entry["replica"] == *address);
                entry.is_some_and(|entry| entry["share"].as_f64().is_some_and(is_fair))
            })
        })
        .await;
    }

    /// Lists another replica alone in the record, and waits until none of these has new connections.
    pub(crate) async fn list_none(&self) {
        let record = "{kind: GatewayBackend, name: gw-1, zone: a, replicas: ['10.77.0.99:7440']}";
        let share = "fairmesh_gateway_entry_share_ratio{address=\"10.99.0.1:7440\"}";
        self.mesh.cli(&["apply", "-f", "-"], record).await.ok();
        for replica in &self.replicas {
            let address = format!("10.77.0.{}:7441", replica.number);
            until("it has no share", async || {
                let page = page(&address, "/metrics").await;
                let value =
                    page.lines().find_map(|line| line.strip_prefix(share)?.trim().parse::<f64>().ok());
                value == Some(0.0)
            })
            .await;
        }
    }

    fn last(&self) -> Option<u8> {
        self.replicas.last().map(|one| one.number)
    }

    /// Has the router spread packets over the machines of all replicas that it knows.
    fn route(&self) {
        let routed = self.replicas.iter().filter(|one| one.is_routed);
        let hops: Vec<String> = routed.map(|one| format!("10.77.0.{}", one.number)).collect();
        let hops = hops.iter().flat_map(|hop| ["nexthop", "via", hop]);
        self.router
            .ip(&["route", "replace", "10.99.0.1/32"].into_iter().chain(hops).collect::<Vec<_>>())
            .unwrap();
    }

    fn replica(&mut self, number: u8) -> &mut Replica {
        self.replicas.iter_mut().find(|one| one.number == number).unwrap()
    }

    /// Takes a replica from the router and has it stop. Its connections stay until they end.
    pub(crate) async fn stop(&mut self, number: u8) {
        self.replica(number).is_routed = false;
        self.route();
        self.replica(number).process.signal(Signal::TERM);
        let listen = format!("10.77.0.{number}:7440");
        until("it accepts no more", async || TcpStream::connect(&listen).await.is_err()).await;
    }

    /// Starts a successor of a replica that has begun connections, and waits until it serves.
    pub(crate) async fn succeed(&mut self, number: u8) {
        let program = self.program(number);
        let (handle, replica) = (Handle::current(), self.replica(number));
        let successor = replica.machine.within(|| {
            let _runtime = handle.enter();
            Process::start(program)
        });
        replica.predecessor = Some(mem::replace(&mut replica.process, successor));
        until("the successor serves", async || self.begun_at(number).await == Some(0)).await;
    }

    /// Waits until the predecessors have ended, which have no connections any more.
    pub(crate) async fn predecessor_ends(&mut self) {
        for predecessor in self.replicas.iter_mut().filter_map(|one| one.predecessor.as_mut()) {
            assert!(predecessor.end().await.success());
        }
    }

    /// Starts a replica that was killed.
    pub(crate) async fn restart(&mut self, number: u8) {
        let (handle, replica) = (Handle::current(), self.replica(number));
        let (machine, process) = (&replica.machine, &mut replica.process);
        machine.within(|| {
            let _runtime = handle.enter();
            process.restart();
        });
        self.is_ready(number).await;
        self.declare().await;
    }

    async fn is_ready(&self, number: u8) {
        let address = format!("10.77.0.{number}:7441");
        until("the replica is ready", async || page(&address, "/readyz").await.ends_with("ready\n")).await;
    }

    /// Has a replica stop, and waits for its end.
    pub(crate) async fn end(&mut self, number: u8, signal: Signal) {
        let replica = self.replica(number);
        replica.process.signal(signal);
        replica.process.end().await;
    }

    /// Kills a replica. The router still sends packets to its machine.
    pub(crate) async fn kill(&mut self, number: u8) {
        self.replica(number).process.kill().await;
    }

    /// Cuts the cable of a machine, which the router notices.
    pub(crate) fn cut(&mut self, number: u8) {
        self.replica(number).is_routed = false;
        self.router.ip(&["link", "set", &format!("m{number}"), "down"]).unwrap();
        self.route();
    }

    pub(crate) fn pins(&self) -> Vec<PathBuf> {
        self.pins.list()
    }

    /// Opens connections of a pod.
    pub(crate) async fn open(&self, count: usize) -> Vec<Flow> {
        let mut flows = Vec::with_capacity(count);
        while flows.len() < count {
            let opened = join_all((0..AT_ONCE.min(count - flows.len())).map(|_| self.open_one())).await;
            flows.extend(opened.into_iter().map(|one| one.expect("it is accepted")));
        }
        flows
    }

    async fn open_one(&self) -> io::Result<Flow> {
        let mut stream = dial(&self.pod, ENTRY.parse().unwrap(), ExpectedPeer::Gateway).await?;
        stream.write_all(&header("10.1.9.9:80".parse().unwrap())).await?;
        stream.write_all(UPGRADE).await?;
        stream.flush().await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let is_upgraded = head.starts_with(b"HTTP/1.1 101 ");
        let refused = || io::Error::other(String::from_utf8_lossy(&head).into_owned());
        is_upgraded.then_some(Flow { stream, sent: 0 }).ok_or_else(refused)
    }

    /// Open connections of pods by replica.
    pub(crate) async fn held(&self) -> Vec<(u8, usize)> {
        let mut held = Vec::new();
        for replica in &self.replicas {
            let metric = "fairmesh_gateway_tenant_connections_open{tenant=\"red\"}";
            let open = self.metric(replica.number, metric).await.unwrap_or_default();
            held.push((replica.number, usize::try_from(open).unwrap()));
        }
        held
    }

    /// Connections that began at the replicas.
    pub(crate) async fn begun(&self) -> u64 {
        let mut begun = 0;
        for replica in &self.replicas {
            begun += self.begun_at(replica.number).await.unwrap();
        }
        begun
    }

    async fn begun_at(&self, number: u8) -> Option<u64> {
        self.metric(number, "fairmesh_gateway_entry_packets_total{outcome=\"begun\"}").await
    }

    async fn metric(&self, number: u8, metric: &str) -> Option<u64> {
        let page = page(&format!("10.77.0.{number}:7441"), "/metrics").await;
        page.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse().ok())
    }
}

impl Flow {
    /// Sends bytes that nothing else has sent, and compares what comes back.
    pub(crate) async fn exchange(&mut self) -> io::Result<()> {
        self.sent += 1;
        let length = [40, 700, 9_000][self.sent as usize % 3];
        let sent: Vec<u8> = (0..length).map(|at: u64| ((at * self.sent) >> 2) as u8).collect();
        let mut received = vec![0; sent.len()];
        let exchanged = async {
            self.stream.write_all(&sent).await?;
            self.stream.flush().await?;
            self.stream.read_exact(&mut received).await
        };
        timeout(PATIENCE, exchanged).await??;
        (received == sent).then_some(()).ok_or_else(|| io::Error::other("other bytes came back"))
    }

    /// Whether it ends by this time while nothing is sent.
    pub(crate) async fn ends_by(&mut self, time: Instant) -> bool {
        // Anything that is read on a connection that stays would be a byte too many.
        timeout_at(time, self.stream.read_u8()).await.is_ok_and(|read| read.is_err())
    }

    /// Whether it is reset by this time, when bytes are sent on it.
    pub(crate) async fn is_reset_by(&mut self, time: Instant) -> bool {
        let exchanged = timeout_at(time, self.exchange()).await;
        exchanged
            .is_ok_and(|result| result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset))
    }
}
