//! Runs the binary and reads its output.

use std::{
    fs,
    io::Write,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

pub(crate) use fairmesh_test_support::eventually_blocking as wait_until;
use fairmesh_wire::{
    handshake,
    transport::Address,
    v1::{Endpoint, Location, RegisterRequest, Registration, Subscribe, WatchRequest, watch_request},
};
use tempfile::TempDir;

/// Declares a sharded and a plain service, and the topology.
pub(crate) const SHOP: &str = "\
kind: Topology
regions: [{name: eu, neighbours: [us]}, {name: us}]
roundTrips: [{between: [eu, us], rtt: 20ms}]
---
kind: Hosts
types: [{name: milan-64, speed: 1250}]
prefixes: [{prefix: 10.1.0.0/16, hostType: milan-64}]
---
kind: Service
name: shop/cart
type: sharded
protocol: grpc
---
kind: Service
name: shop/catalog
---
kind: Policy
service: shop/catalog
timeout: 5s
---
kind: ShardMap
service: shop/cart
interval: {start: 0, end: 1000}
shards:
  - {id: 0, start: 0, replicas: [{instance: cart-0, region: eu, role: primary}]}
  - {id: 1, start: 500, replicas: [{instance: cart-1, region: us, role: primary}]}
";

/// Exit code and output of a finished run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    /// Standard output; panics unless the run succeeded.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Standard error; panics unless the run ended with this code.
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.err
    }

    /// Standard output as JSON; panics unless the run succeeded.
    pub(crate) fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// Runs the binary to its end, with `input` as standard input.
pub(crate) fn fairmesh(control: &str, args: &[&str], input: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(args)
        .env_clear()
        .env("FAIRMESH_CONTROL", control)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A temporary folder with a control plane.
pub(crate) struct Mesh {
    folder: TempDir,
    control: Option<Child>,
    /// Further arguments of the control plane. By default, its store has no trust domain.
    pub(crate) arguments: Vec<String>,
}

impl Mesh {
    /// A folder in which nothing runs.
    pub(crate) fn empty() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            control: None,
            arguments: ["--trust-domain", "none"].map(String::from).to_vec(),
        }
    }

    /// A control plane with an empty store, ready for calls.
    pub(crate) fn start() -> Self {
        let mut mesh = Self::empty();
        mesh.start_control();
        mesh
    }

    /// Like [`start`](Self::start), with [`SHOP`] applied.
    pub(crate) fn with_shop() -> Self {
        let mesh = Self::start();
        mesh.apply(SHOP).ok();
        mesh
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Address of the control plane.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.path("control.sock").display())
    }

    /// Command that starts a control plane in this folder.
    pub(crate) fn control_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command
            .args(["control", "--admin", "127.0.0.1:0", "--grpc", &self.address(), "--data-dir"])
            .arg(self.path("data"))
            .args(&self.arguments)
            .env_clear();
        command
    }

    /// Starts the control plane and waits until it accepts connections.
    pub(crate) fn start_control(&mut self) {
        self.spawn_control();
        self.wait_for_control();
    }

    /// Starts the control plane.
    pub(crate) fn spawn_control(&mut self) {
        let log = fs::File::create(self.path("control.log")).unwrap();
        self.control = Some(self.control_command().stderr(log).spawn().unwrap());
    }

    /// Waits until the control plane accepts connections.
    pub(crate) fn wait_for_control(&mut self) {
        let (mut child, socket) = (self.control.take().unwrap(), self.path("control.sock"));
        wait_until("the control plane listens", || {
            assert!(child.try_wait().unwrap().is_none(), "{}", self.control_log());
            UnixStream::connect(&socket).is_ok()
        });
        self.control = Some(child);
    }

    pub(crate) fn control_log(&self) -> String {
        fs::read_to_string(self.path("control.log")).unwrap()
    }

    /// HTTP address of the control plane, from its log.
    pub(crate) fn pages(&self) -> String {
        let logged = || {
            let log = self.control_log();
            let line = log.lines().find_map(|line| line.split_once("serving HTTP address="))?;
            Some(line.1.trim().to_owned())
        };
        wait_until("the log has its address", || logged().is_some());
        logged().unwrap()
    }

    /// Sends a signal to the control plane and waits for its end. Returns the exit code; `None` if the signal killed
    /// it.
    pub(crate) fn stop_control(&mut self, signal: &str) -> Option<i32> {
        let mut child = self.control.take().unwrap();
        send(&child, signal);
        child.wait().unwrap().code()
    }

    /// Runs a command against this control plane.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        fairmesh(&self.address(), args, "")
    }

    /// Applies YAML.
    pub(crate) fn apply(&self, yaml: &str) -> Run {
        fairmesh(&self.address(), &["apply", "-f", "-"], yaml)
    }

    /// Writes a file into the folder.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Starts a replica in region `eu` that follows one of `upstream`.
    pub(crate) fn replica(&self, name: &str, upstream: &str) -> Agent {
        let socket = self.path(&format!("{name}.sock"));
        let address = format!("unix:{}", socket.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command
            .args(["rib", "replica", "--name", name, "--admin", "none", "--upstream", upstream])
            .args(["--region", "eu", "--listen", &address, "--state-dir"])
            .arg(self.path(name))
            .env_clear()
            .stderr(Stdio::null());
        let replica = Agent { child: command.spawn().unwrap(), address };
        wait_until("the replica listens", || UnixStream::connect(&socket).is_ok());
        replica
    }

    /// Starts an agent in this region that follows the control plane.
    pub(crate) fn agent(&self, region: &str) -> Agent {
        self.agent_at(region, &self.address())
    }

    /// Starts an agent in this region that follows this upstream.
    pub(crate) fn agent_at(&self, region: &str, upstream: &str) -> Agent {
        let socket = self.path(&format!("agent-{region}.sock"));
        let address = format!("unix:{}", socket.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command
            .args(["agent", "--region", region, "--admin", "none", "--control", upstream])
            .args(["--listen", &address, "--state-dir"])
            .arg(self.path(&format!("agent-{region}")))
            .env_clear()
            .stderr(Stdio::null());
        let agent = Agent { child: command.spawn().unwrap(), address };
        wait_until("the agent listens", || UnixStream::connect(&socket).is_ok());
        agent
    }

    /// Registers an endpoint without a lease, as of a server that never dies.
    pub(crate) fn register(&self, service: &str, instance: &str, region: &str, port: u16) {
        self.announce(service, endpoint(instance, region, port));
    }

    /// Registers the given endpoint.
    pub(crate) fn announce(&self, service: &str, endpoint: Endpoint) {
        let registration =
            Registration { service: service.into(), endpoint: Some(endpoint), declaration: None };
        let request = RegisterRequest { registrations: vec![registration] };
        runtime().block_on(async { self.connect().await.registry().register(request).await.unwrap() });
    }

    /// Runs `something` while a program called `test` watches a prefix.
    pub(crate) fn while_watching(&self, prefix: &str, something: impl FnOnce()) {
        let subscribe = Subscribe { prefix: prefix.into(), ..Subscribe::default() };
        let request = WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) };
        let runtime = runtime();
        let _watch = runtime.block_on(async {
            let mut watch = self.connect().await.watch().await.unwrap();
            watch.send(&request);
            watch.next().await.expect("a snapshot");
            watch
        });
        something();
    }

    pub(crate) async fn connect(&self) -> handshake::Connection {
        let address: Address = self.address().parse().unwrap();
        handshake::connect(&Default::default(), &address, "test").await.unwrap()
    }
}

/// An agent process.
pub(crate) struct Agent {
    pub(crate) child: Child,
    address: String,
}

impl Agent {
    /// Address of the agent.
    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if let Some(mut child) = self.control.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A plaintext endpoint on this machine.
pub(crate) fn endpoint(instance: &str, region: &str, port: u16) -> Endpoint {
    Endpoint {
        mtls: false,
        instance: instance.into(),
        address: format!("127.0.0.1:{port}"),
        location: Some(Location { region: region.into(), ..Location::default() }),
        state: fairmesh_wire::v1::endpoint::State::Serving.into(),
        ..Endpoint::default()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Sends a signal by name, such as `TERM`.
pub(crate) fn send(child: &Child, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// All files below a folder with their contents, for a check that nothing changed.
pub(crate) fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.is_file()).map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    files.sort();
    files
}
