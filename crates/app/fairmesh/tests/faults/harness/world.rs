use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use fairmesh_client::Mesh;
use fairmesh_model::{Endpoint, EndpointState, InstanceId, Prefix, Record, RecordKey, Region, ServiceName};
use fairmesh_rib::disk_cache::Cache;
use fairmesh_test_support::fairmesh;
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::Address,
    v1::ReadRequest,
};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Process, Program, Run, free_port, run, until};

/// A control plane and an agent as processes, in a temporary folder.
pub(crate) struct World {
    pub(crate) control: Process,
    pub(crate) agent: Process,
    /// Addresses of the control plane's pages and of the agent's metrics.
    pages: String,
    metrics: String,
    folder: TempDir,
}

impl World {
    /// Starts both without a trust domain, and applies the YAML unless it is empty.
    pub(crate) async fn start(yaml: &str) -> Self {
        Self::start_in("none", yaml).await
    }

    /// Starts both in this trust domain, and applies the YAML unless it is empty.
    pub(crate) async fn start_in(trust_domain: &str, yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display();
        let pages = format!("127.0.0.1:{}", free_port());
        let control = format!(
            "control --trust-domain {trust_domain} --admin {pages} --grpc unix:{dir}/control.sock --data-dir {dir}/data"
        );
        let control = Program::fairmesh(folder.path().join("control.log"), &control);
        let metrics = format!("127.0.0.1:{}", free_port());
        let above = format!("unix:{dir}/control.sock");
        let agent = agent_program(&folder, ("eu", "agent"), (&metrics, &above));
        let (control, agent) = (Process::start(control), Process::start(agent));
        let world = Self { control, agent, pages, metrics, folder };
        world.control_is_up().await;
        world.agent_is_up().await;
        if !yaml.is_empty() {
            world.apply(yaml).await.ok();
        }
        world
    }

    /// Starts another agent in the same region.
    pub(crate) async fn another_agent(&self, name: &str) -> (Process, Address) {
        self.another_agent_in("eu", name).await
    }

    /// Starts another agent in this region.
    pub(crate) async fn another_agent_in(&self, region: &str, name: &str) -> (Process, Address) {
        self.start_agent(&format!("unix:{}", self.path("control.sock").display()), region, name).await
    }

    /// Starts a replica in this region, and an agent that follows it.
    pub(crate) async fn another_agent_below_a_replica(
        &self,
        region: &str,
        name: &str,
    ) -> ([Process; 2], Address) {
        let dir = self.folder.path().display();
        let args = format!(
            "rib replica --name {name}-replica --region {region} --admin none --upstream unix:{dir}/control.sock \
             --listen unix:{dir}/{name}-replica.sock --state-dir {dir}/{name}-replica-state"
        );
        let replica = Program::fairmesh(self.path(&format!("{name}-replica.log")), &args);
        let replica = Process::start(replica);
        let address = self.path(&format!("{name}-replica.sock"));
        let above = format!("unix:{}", address.display());
        until("the replica is up", async || {
            handshake::connect(&Default::default(), &Address::Unix(address.clone()), "test").await.is_ok()
        })
        .await;
        let (agent, address) = self.start_agent(&above, region, name).await;
        ([replica, agent], address)
    }

    async fn start_agent(&self, above: &str, region: &str, name: &str) -> (Process, Address) {
        let agent = Process::start(agent_program(&self.folder, (region, name), ("none", above)));
        let address = Address::Unix(self.path(&format!("{name}.sock")));
        until("the other agent is up", async || {
            handshake::connect(&Default::default(), &address, "test").await.is_ok()
        })
        .await;
        (agent, address)
    }

    pub(crate) async fn control_is_up(&self) {
        let up =
            async || handshake::connect(&Default::default(), &self.control_address(), "test").await.is_ok();
        until("the control plane is up", up).await;
    }

    pub(crate) async fn agent_is_up(&self) {
        let up =
            async || handshake::connect(&Default::default(), &self.agent_address(), "test").await.is_ok();
        until("the agent is up", up).await;
    }

    /// Ends the control plane, and restarts the agent in this zone with its saved data, after `change` has modified the
    /// data.
    pub(crate) async fn goes_dark(&mut self, zone: Option<&str>, change: impl FnOnce(&Path)) {
        self.control.kill().await;
        self.agent.signal(Signal::TERM);
        self.agent.end().await;
        change(&self.path("agent-state"));
        let above = self.control_address().to_string();
        let mut program = agent_program(&self.folder, ("eu", "agent"), (&self.metrics, &above));
        program.args.extend(zone.into_iter().flat_map(|zone| ["--zone".into(), zone.into()]));
        self.agent = Process::start(program);
        self.agent_is_up().await;
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn control_address(&self) -> Address {
        Address::Unix(self.path("control.sock"))
    }

    pub(crate) fn agent_address(&self) -> Address {
        Address::Unix(self.path("agent.sock"))
    }

    /// A program's `Mesh`, which learns everything from the agent.
    pub(crate) async fn mesh(&self) -> Mesh {
        self.mesh_of(self.agent_address()).await
    }

    pub(crate) async fn mesh_of(&self, agent: Address) -> Mesh {
        let mesh = Mesh::builder().agent(agent).client_id("test").cache_dir(self.path("nothing"));
        mesh.connect().await.unwrap()
    }

    /// Runs a command against the control plane.
    pub(crate) async fn cli(&self, args: &[&str]) -> Run {
        self.cli_with(args, "").await
    }

    pub(crate) async fn apply(&self, yaml: &str) -> Run {
        self.cli_with(&["apply", "-f", "-"], yaml).await
    }

    async fn cli_with(&self, args: &[&str], input: &str) -> Run {
        // Options that name the control plane follow the subcommand.
        let control = self.control_address().to_string();
        let args = [args, &["--control", &control]].concat();
        run(fairmesh(&args), input, Duration::from_secs(30)).await
    }

    /// Runs a command against a lookaside.
    pub(crate) async fn lookaside_cli(&self, lookaside: &Address, args: &[&str]) -> Run {
        let at = lookaside.to_string();
        run(fairmesh(&[&["lookaside", "pick", "--at", &at], args].concat()), "", Duration::from_secs(30))
            .await
    }

    /// Connects to the control plane.
    pub(crate) async fn connection(&self) -> Connection {
        handshake::connect(&Default::default(), &self.control_address(), "test").await.unwrap()
    }

    /// An endpoint's record at the control plane.
    pub(crate) async fn endpoint(&self, service: &str, instance: &str) -> Option<Endpoint> {
        let prefix = Prefix::endpoints(&ServiceName::new(service).unwrap(), None);
        let request = ReadRequest { prefixes: vec![prefix.to_string()], at_least: None };
        let read = self.connection().await.rib().read(request).await.unwrap().into_inner();
        let instance = InstanceId::new(instance).unwrap();
        read.entries.into_iter().find_map(|entry| {
            let key = RecordKey::parse(&entry.key).unwrap();
            match record_encoding::decode(&key, &entry.value).unwrap() {
                Record::Endpoint(endpoint) if endpoint.instance == instance => Some(endpoint),
                _ => None,
            }
        })
    }

    /// Waits until the control plane lists an instance as serving.
    pub(crate) async fn serves(&self, service: &str, instance: &str) {
        let serves = async || {
            let endpoint = self.endpoint(service, instance).await;
            endpoint.is_some_and(|endpoint| endpoint.state == EndpointState::Serving)
        };
        until(&format!("{instance} serves"), serves).await;
    }

    /// Waits until the agent has saved the records that callers of a service need, as of this revision or later.
    pub(crate) async fn is_saved(&self, service: &str, revision: u64) {
        let name = ServiceName::new(service).unwrap();
        let keys = [RecordKey::Service(name.clone()), RecordKey::Policy(name.clone())];
        let [declared, policy] = keys.map(|key| Prefix::from(&key));
        let needed = [Prefix::topology(), declared, policy];
        let eu = Region::new("eu").unwrap();
        // Endpoints of all regions, or only of the agent's region if the policy asks for no more.
        let endpoints = [None, Some(&eu)].map(|only| Prefix::endpoints(&name, only));
        let disk = Cache::read_only(self.path("agent-state"));
        let saved = |prefix| {
            disk.load(prefix, std::time::SystemTime::UNIX_EPOCH)
                .unwrap()
                .is_some_and(|copy| copy.revision.number >= revision)
        };
        until(&format!("{service} is saved"), async || {
            needed.iter().all(saved) && endpoints.iter().any(saved)
        })
        .await;
    }

    /// Age of the agent's data as exported by the agent, in seconds.
    pub(crate) async fn agent_data_age(&self) -> f64 {
        self.agent_metric("fairmesh_agent_data_age_seconds").await
    }

    /// Value of an agent metric, given its name with labels.
    pub(crate) async fn agent_metric(&self, name: &str) -> f64 {
        metric(&self.metrics, name).await
    }

    /// Value of a control-plane metric, given its name with labels.
    pub(crate) async fn control_metric(&self, name: &str) -> f64 {
        metric(&self.pages, name).await
    }

    /// Whether the control plane has a metric, given its name with labels.
    pub(crate) async fn control_has_metric(&self, name: &str) -> bool {
        find_metric(&self.pages, name).await.is_ok()
    }
}

async fn metric(address: &str, name: &str) -> f64 {
    find_metric(address, name).await.unwrap_or_else(|text| panic!("no {name} in {text}"))
}

/// Value of a metric; the error is the page that lacks it.
async fn find_metric(address: &str, name: &str) -> Result<f64, String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: mesh\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap()).ok_or(text)
}

fn agent_program(folder: &TempDir, (region, name): (&str, &str), (metrics, above): (&str, &str)) -> Program {
    let dir = folder.path().display();
    let args = format!(
        "agent --region {region} --name {name} --admin {metrics} --control {above} \
         --listen unix:{dir}/{name}.sock --state-dir {dir}/{name}-state"
    );
    Program::fairmesh(folder.path().join(format!("{name}.log")), &args)
}
