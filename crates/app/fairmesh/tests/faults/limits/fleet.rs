use std::{ffi::OsString, path::PathBuf};

use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
    v1::ReadRequest,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::Status;

use crate::harness::{Authority, Process, Program, free_port, until};

/// One process of each kind that other processes of a mesh connect to, with its listener addresses.
pub(crate) struct Fleet {
    pub(crate) control: Process,
    pub(crate) replica: Process,
    pub(crate) agent: Process,
    pub(crate) lookaside: Process,
    pub(crate) control_http: String,
    pub(crate) replica_http: String,
    pub(crate) agent_http: String,
    pub(crate) lookaside_http: String,
    /// gRPC address of the control plane; the other addresses follow.
    pub(crate) control_grpc: String,
    pub(crate) replica_grpc: String,
    pub(crate) lookaside_grpc: String,
    folder: TempDir,
}

impl Fleet {
    /// Starts all processes, each with at most `descriptors` file descriptors if given.
    pub(crate) async fn start(descriptors: Option<u32>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display().to_string();
        let [control_http, replica_http, agent_http, lookaside_http] = ports();
        let [control_grpc, replica_grpc, lookaside_grpc, agent_probes] = ports();
        let control_traces = format!("127.0.0.1:{}", free_port());
        let start = |name: &str, args: String| {
            Process::start(program(folder.path().join(format!("{name}.log")), &args, descriptors))
        };
        let control = format!(
            "control --trust-domain none --admin {control_http} --grpc {control_grpc} --traces {control_traces} \
             --data-dir {dir}/data"
        );
        let replica = format!(
            "rib replica --upstream {control_grpc} --listen {replica_grpc} --admin {replica_http} \
             --state-dir {dir}/replica --name replica"
        );
        let agent = format!(
            "agent --region eu --name agent --control {control_grpc} --admin {agent_http} --zone-probes {agent_probes} \
             --listen unix:{dir}/agent.sock --state-dir {dir}/agent"
        );
        let lookaside = format!(
            "lookaside --listen {lookaside_grpc} --admin {lookaside_http} --agent unix:{dir}/agent.sock \
             --client-id lookaside"
        );
        let fleet = Self {
            control: start("control", control),
            replica: start("replica", replica),
            agent: start("agent", agent),
            lookaside: start("lookaside", lookaside),
            control_http,
            replica_http,
            agent_http,
            lookaside_http,
            control_grpc,
            replica_grpc,
            lookaside_grpc,
            folder,
        };
        for http in [&fleet.control_http, &fleet.replica_http, &fleet.agent_http, &fleet.lookaside_http] {
            until(&format!("{http} is ready"), async || {
                get(http, "/readyz").await.is_some_and(|page| page.starts_with("HTTP/1.1 200"))
            })
            .await;
        }
        fleet
    }

    /// Starts a key server for the fleet; returns the address of its pages. Without a trust domain, it refuses every
    /// signature.
    pub(crate) async fn start_key_server(&self) -> (Process, String) {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path());
        authority.issue("edge", "ec");
        let [listen, http, ..] = ports();
        let args = format!(
            "keyserver --agent unix:{} --listen {listen} --admin {http} --key edge={} --allow edge=spiffe://prod/shop/edge",
            self.agent_socket().display(),
            authority.path("edge.key")
        );
        let process = Process::start(program(self.path("keyserver.log"), &args, None));
        until("the key server has pages", async || get(&http, "/healthz").await.is_some()).await;
        (process, http)
    }

    pub(crate) fn agent_socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn ports() -> [String; 4] {
    [(); 4].map(|()| format!("127.0.0.1:{}", free_port()))
}

/// The binary under test, with at most `descriptors` file descriptors if given.
pub(super) fn program(log: PathBuf, args: &str, descriptors: Option<u32>) -> Program {
    let Some(descriptors) = descriptors else { return Program::fairmesh(log, args) };
    let binary = env!("CARGO_BIN_EXE_fairmesh");
    let script = format!("ulimit -n {descriptors}; exec {binary} {args}");
    Program {
        binary: "/bin/sh".into(),
        args: ["-c".into(), OsString::from(script)].into(),
        env: Vec::new(),
        log,
    }
}

/// Response body at a path; `None` without a response.
pub(super) async fn get(to: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(to).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: mesh\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await.ok()?;
    Some(page).filter(|page| !page.is_empty())
}

/// Value of the series `name{labels}` or `name`.
pub(super) async fn metric(http: &str, series: &str) -> f64 {
    let page = get(http, "/metrics").await.unwrap();
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
}

/// A connection of an honest caller.
pub(super) async fn connection(address: &str) -> Connection {
    let address: Address = address.parse().unwrap();
    handshake::connect(&Default::default(), &address, "honest").await.unwrap()
}

/// Makes a small read.
pub(super) async fn read(connection: &Connection) -> Result<(), Status> {
    let request = ReadRequest { prefixes: vec!["/topology/".into()], at_least: None };
    connection.rib().read(request).await.map(drop)
}
