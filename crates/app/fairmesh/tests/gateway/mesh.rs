//! A mesh on loopback: a trust domain, an agent of the provider and of each tenant, a gateway, and a node of tenant
//! red.

use std::{io, net::SocketAddr, path::PathBuf};

use bytes::Bytes;
use fairmesh_identity::{IdentityRequest, ProgramIdentity};
use fairmesh_model::{Policy, Record, RecordKey, Service, ServiceName};
use fairmesh_rib::{Batch, Op};
use fairmesh_store::{RedbStore, Store as _};
use fairmesh_test_support::{
    PATIENCE, Process, Program, Run, eventually_async as until, fairmesh, free_port, run, skipped,
};
use fairmesh_wire::{
    handshake::{self, Connection},
    proxy_protocol::{Addresses, ConnectionId, write_with_id},
    record_encoding,
    transport::{Address, EndpointAddress, ExpectedPeer, Stream, Transport},
    v1::{self, ApplyRequest},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

/// Virtual address that both tenants use.
pub(crate) const VIRTUAL: &str = "10.96.0.1:80";

/// Both tenants declare a service at the same virtual address. Blue declares another at a second address.
const RECORDS: &str = "\
{kind: Service, name: red/web, virtualAddress: '10.96.0.1:80'}
---
{kind: Service, name: red/client}
---
{kind: Service, name: blue/web, virtualAddress: '10.96.0.1:80'}
---
{kind: Service, name: blue/vault, virtualAddress: '10.96.0.7:80'}
---
kind: Policy
service: red/web
routes:
  - name: moved
    match: {path: {exact: /moved}}
    redirect: {path: {full: /}, status: 308}
  - name: injected
    match: {path: {exact: /injected}}
    fault: {abort: {share: 100%, status: 418}}
authorization:
  rules:
    - {name: reads, from: ['red/client'], methods: [GET]}
";

/// Further options of the control plane, the gateway and the node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) control: &'static str,
    pub(crate) gateway: &'static str,
    pub(crate) node: &'static str,
}

/// The processes of the mesh; dropping the value ends them.
pub(crate) struct Mesh {
    folder: TempDir,
    processes: Vec<Process>,
    /// Address where nodes connect to the gateway, and the gateway to the node.
    pub(crate) gateway: SocketAddr,
    pub(crate) node: SocketAddr,
    /// Address of the pod behind the node.
    pub(crate) pod: SocketAddr,
    pub(crate) gateway_pages: String,
    node_pages: String,
}

fn local() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

impl Mesh {
    /// Starts all processes, with the server at `pod` behind the node. `None` if this process may not accept captured
    /// connections.
    pub(crate) async fn start(pod: SocketAddr) -> Option<Self> {
        Self::start_with(pod, Options::default()).await
    }

    /// Like [`start`](Self::start), with further options.
    pub(crate) async fn start_with(pod: SocketAddr, options: Options) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("connections cannot be captured", "it needs CAP_NET_RAW");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let (gateway, node) = (local(), local());
        let [gateway_pages, node_pages] = [local(), local()].map(|address| address.to_string());
        let mut mesh = Self { folder, processes: Vec::new(), gateway, node, pod, gateway_pages, node_pages };
        let grpc = local();
        let (dir, control) = (mesh.folder.path().display().to_string(), mesh.control());
        mesh.start_process(
            "control",
            &format!("control --trust-domain prod --http 127.0.0.1:0 --grpc {grpc} --grpc {control} --data-dir {dir}/data {}", options.control),
        );
        until("the control plane is up", async || mesh.cli(&["identity", "show"], "").await.code == Some(0))
            .await;
        mesh.agent("edge", &control).await;
        for tenant in ["red", "blue"] {
            let token = mesh.cli(&["identity", "token", tenant, "--tenant", tenant], "").await.ok();
            std::fs::write(mesh.path(&format!("{tenant}.token")), token).unwrap();
            mesh.agent(tenant, &format!("{grpc} --join-token-file {dir}/{tenant}.token")).await;
        }
        mesh.cli(&["apply", "-f", "-"], RECORDS).await.ok();
        mesh.start_process("gateway", &mesh.gateway_args(options.gateway));
        let (agent, pages, capture) = (mesh.agent_of("red"), &mesh.node_pages, local());
        let args = format!(
            "node --agent {agent} --gateway {gateway} --capture {capture} --admin {pages} --pod red/web@{node}={pod} {}",
            options.node
        );
        mesh.start_process("node", &args);
        for pages in [mesh.gateway_pages.clone(), mesh.node_pages.clone()] {
            until("it is ready", async || page(&pages, "/readyz").await.ends_with("ready\n")).await;
        }
        Some(mesh)
    }

    /// Replaces values in the store of the control plane by bytes that cannot be decoded, as a damaged disk or a newer
    /// release may leave them. Control plane and gateway start again afterwards.
    pub(crate) async fn damage(&mut self, keys: &[RecordKey]) {
        let gateway = self.processes.len() - 2;
        for process in [0, gateway] {
            self.processes[process].kill().await;
        }
        let store = RedbStore::open(self.path("data/rib.redb")).unwrap();
        let ops = keys.iter().map(|key| Op::put(key.to_string(), Bytes::from_static(&[0xff])));
        store.write(Batch { ops: ops.collect() }).await.unwrap();
        drop(store);
        self.processes[0].restart();
        until("the control plane is up", async || self.cli(&["identity", "show"], "").await.code == Some(0))
            .await;
        self.processes[gateway].restart();
        let pages = self.gateway_pages.clone();
        until("it is ready", async || page(&pages, "/readyz").await.ends_with("ready\n")).await;
    }

    fn start_process(&mut self, name: &str, args: &str) {
        let program = Program::fairmesh(self.path(&format!("{name}.log")), args.trim_end());
        self.processes.push(Process::start(program));
    }

    async fn agent(&mut self, name: &str, control: &str) {
        let (socket, state) = (self.agent_of(name), self.path(&format!("state-{name}")));
        let args = format!(
            "agent --name {name} --region eu --metrics none --listen {socket} --state-dir {} --control {control}",
            state.display()
        );
        self.start_process(&format!("agent-{name}"), &args);
        let socket = self.path(&format!("{name}.sock"));
        until("the agent listens", async || tokio::net::UnixStream::connect(&socket).await.is_ok()).await;
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn control(&self) -> String {
        format!("unix:{}", self.path("control.sock").display())
    }

    /// Writes policies in one batch through the API, which is faster than a command.
    pub(crate) async fn set_policies(&self, connection: &Connection, policies: &[(&str, Policy)]) {
        let records =
            policies.iter().map(|(name, policy)| (RecordKey::Policy(named(name)), policy.clone().into()));
        apply(connection, records).await;
    }

    /// Declares services in one batch.
    pub(crate) async fn set_services(&self, connection: &Connection, services: &[(&str, Service)]) {
        let records =
            services.iter().map(|(name, service)| (RecordKey::Service(named(name)), service.clone().into()));
        apply(connection, records).await;
    }

    /// Whether a caller of tenant red gets a response of red/web.
    pub(crate) async fn reaches_web(&self, red: &Transport) -> bool {
        let request = "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
        self.call(red, VIRTUAL, request).await.contains("red/web for")
    }

    /// Connects to the control plane.
    pub(crate) async fn control_connection(&self) -> Connection {
        let address = Address::Unix(self.path("control.sock"));
        handshake::connect(&Default::default(), &address, "test").await.unwrap()
    }

    /// Connects to the agent of the provider as a gateway, which signs its reports.
    pub(crate) async fn gateway_connection(&self) -> Connection {
        let gateway = self.identity("edge", "fairmesh/gateway/reports").await;
        let address = Address::Unix(self.path("edge.sock"));
        handshake::connect(&gateway, &address, "test").await.unwrap()
    }

    pub(crate) fn agent_of(&self, name: &str) -> String {
        format!("unix:{}", self.path(&format!("{name}.sock")).display())
    }

    /// Arguments of the gateway, followed by `further`.
    pub(crate) fn gateway_args(&self, further: &str) -> String {
        let (agent, gateway, pages) = (self.agent_of("edge"), self.gateway, &self.gateway_pages);
        format!("gateway --agent {agent} --listen {gateway} --admin {pages} --cores 1 {further}")
    }

    /// Runs a command that needs no control plane.
    pub(crate) async fn command(&self, args: &[&str]) -> Run {
        run(fairmesh(args), "", PATIENCE).await
    }

    /// Runs a command against the control plane.
    pub(crate) async fn cli(&self, args: &[&str], input: &str) -> Run {
        run(fairmesh(&[args, &["--control", &self.control()]].concat()), input, PATIENCE).await
    }

    /// Obtains an identity from an agent.
    pub(crate) async fn identity(&self, agent: &str, path: &str) -> Transport {
        let request = IdentityRequest {
            agent: Address::Unix(self.path(&format!("{agent}.sock"))),
            workload_api: None,
            control_planes: Vec::new(),
            token: None,
            path: Some(path.parse().unwrap()),
            software: "test".into(),
            patience: PATIENCE,
        };
        ProgramIdentity::of_caller(request).await.unwrap().transport()
    }

    /// Waits until a metric of the gateway, or of the node, has this value.
    pub(crate) async fn counts(&self, of_node: bool, metric: &str, value: &str) {
        let pages = if of_node { &self.node_pages } else { &self.gateway_pages };
        let line = format!("{metric} {value}");
        until(&line, async || page(pages, "/metrics").await.lines().any(|one| one == line)).await;
    }

    /// Value of a gateway metric; 0 if absent.
    pub(crate) async fn metric(&self, metric: &str) -> u64 {
        let page = page(&self.gateway_pages, "/metrics").await;
        let value = page.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse().ok());
        value.unwrap_or_default()
    }

    /// Sends `request` to the gateway as a node would, for a pod with this identity that connected to `destination`.
    /// Returns the response.
    pub(crate) async fn call(&self, pod: &Transport, destination: &str, request: &str) -> String {
        match self.open(pod, destination).await {
            Ok(mut stream) => exchange(&mut stream, request.as_bytes()).await,
            Err(error) => format!("not connected: {error}"),
        }
    }

    /// Opens a connection to the gateway for a pod, and sends the connection header.
    pub(crate) async fn open(&self, pod: &Transport, destination: &str) -> io::Result<Stream> {
        let mut stream = dial(pod, self.gateway, ExpectedPeer::Gateway).await?;
        stream.write_all(&header(destination.parse().unwrap())).await?;
        stream.flush().await?;
        Ok(stream)
    }
}

fn named(service: &str) -> ServiceName {
    ServiceName::new(service).unwrap()
}

async fn apply(connection: &Connection, records: impl Iterator<Item = (RecordKey, Record)>) {
    let ops = records.map(|(key, record)| v1::Op {
        key: key.to_string(),
        value: Some(record_encoding::encode(&record)),
        condition: None,
    });
    let request = ApplyRequest { ops: ops.collect(), dry_run: false, ..Default::default() };
    connection.admin().apply(request).await.unwrap();
}

/// Connection header with this destination.
pub(crate) fn header(destination: SocketAddr) -> Vec<u8> {
    let source = ([10, 1, 1, 2], 40_000).into();
    write_with_id(Addresses { source, destination }, ConnectionId(7))
}

/// Opens a connection over mutual TLS.
pub(crate) async fn dial(from: &Transport, to: SocketAddr, peer: ExpectedPeer<'_>) -> io::Result<Stream> {
    let endpoint = EndpointAddress { address: to, peer: Some(peer), accepts_plaintext: false, from: None };
    timeout(PATIENCE, from.connect_endpoint(endpoint)).await?
}

/// Sends a request, then reads until the end of the stream or a failure.
pub(crate) async fn exchange(stream: &mut Stream, request: &[u8]) -> String {
    let mut read = Vec::new();
    let exchanged = async {
        stream.write_all(request).await?;
        stream.flush().await?;
        stream.read_to_end(&mut read).await
    };
    // A refused connection ends with a reset; the returned text then ends with the error.
    let ended = timeout(PATIENCE, exchanged).await.expect("the connection does not end");
    let end = ended.err().map(|error| format!(" ({error})")).unwrap_or_default();
    String::from_utf8_lossy(&read).into_owned() + &end
}

/// Fetches an admin page.
pub(crate) async fn page(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address).await else { return String::new() };
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut read = Vec::new();
    let read_all = async {
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_end(&mut read).await
    };
    let _ = timeout(PATIENCE, read_all).await;
    String::from_utf8_lossy(&read).into_owned()
}

/// Opens silent connections from another local address; returns those that were not refused at once.
pub(crate) async fn silent(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        connections.extend(socket.connect(to).await.ok());
    }
    connections
}

/// A pod that answers the first request of each connection with its name and the caller's identity. It drops the
/// connection on `/dropped`, and accepts any upgrade, after which it echoes.
pub(crate) async fn serve_pod() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    });
    address
}

/// Serves one connection until its end.
async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    if head.starts_with("get /dropped ") {
        return Ok(());
    }
    if head.contains("\r\nupgrade: ") {
        let switch = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(switch).await?;
        let (mut reader, mut writer) = stream.split();
        return tokio::io::copy(&mut reader, &mut writer).await.map(drop);
    }
    let caller = head.lines().find_map(|line| line.strip_prefix("x-fairmesh-caller: "));
    let body = format!("red/web for {}", caller.unwrap_or("nobody"));
    let length = body.len();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await
}
