//! One machine with a control plane and an agent, in a temporary folder and on ports of its own.

use std::{path::PathBuf, time::Duration};

use fairmesh_agent::AgentConfig;
use fairmesh_client::{Address, Location, Region};
use fairmesh_control::{Control, ControlConfig};
use tempfile::TempDir;
use tokio::{
    process::Command,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::process::Process;

/// How long a condition may take to come true: long, since it decides nothing but when a broken test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Machine {
    folder: TempDir,
    control: Address,
    agent: Address,
    stopping: CancellationToken,
    control_task: JoinHandle<()>,
    agent_task: JoinHandle<()>,
}

impl Machine {
    pub(crate) async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let stopping = CancellationToken::new();
        let config = ControlConfig {
            transport: Default::default(),
            trust_domain: Default::default(),
            data_dir: folder.path().join("control"),
            etcd: None,
            oidc: None,
            grpc: vec!["127.0.0.1:0".parse().unwrap()],
            http: Some("127.0.0.1:0".parse().unwrap()),
            traces: None,
            http_names: Vec::new(),
            http_certificate: None,
            sources: Vec::new(),
            proxies: Vec::new(),
            shadow_controllers: Vec::new(),
            gateway_launcher: None,
        };
        let running = Control::start(config).await.unwrap();
        let control = running.grpc_addresses().unwrap().remove(0);
        let stop = stopping.clone().cancelled_owned();
        let control_task = tokio::spawn(async { running.run(stop).await.unwrap() });

        let agent = Address::Unix(folder.path().join("agent.sock"));
        let config = AgentConfig {
            transport: Default::default(),
            upstreams: vec![control.clone()],
            listen: agent.clone(),
            state_dir: folder.path().join("agent"),
            location: Location::in_region(Region::new("local").unwrap()),
            join_token: None,
            workload_api: None,
            local_address: None,
            name: "test".into(),
            metrics: None,
            probes: None,
        };
        let stop = stopping.clone().cancelled_owned();
        let agent_task = tokio::spawn(async { fairmesh_agent::run(config, stop).await.unwrap() });
        Self { folder, control, agent, stopping, control_task, agent_task }
    }

    /// Starts a program that goes on.
    pub(crate) fn spawn(&self, program: impl Into<PathBuf>, arguments: &[&str]) -> Process {
        Process::start(&mut self.command(program, arguments))
    }

    /// Runs a program to its end: what it printed, or what it complained of.
    pub(crate) async fn run(
        &self,
        program: impl Into<PathBuf>,
        arguments: &[&str],
    ) -> Result<String, String> {
        let output = timeout(PATIENCE, self.command(program, arguments).output()).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Runs a program again and again until it goes well: what it printed then.
    pub(crate) async fn until_it_works(&self, program: impl Into<PathBuf>, arguments: &[&str]) -> String {
        let program = program.into();
        let mut complaint = String::new();
        let works = async {
            loop {
                match self.run(&program, arguments).await {
                    Ok(printed) => return printed,
                    Err(said) => complaint = said,
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, works).await.unwrap_or_else(|_| panic!("{program:?} went on to fail: {complaint}"))
    }

    pub(crate) async fn stop(self) {
        self.stopping.cancel();
        timeout(PATIENCE, self.agent_task).await.unwrap().unwrap();
        timeout(PATIENCE, self.control_task).await.unwrap().unwrap();
    }

    fn command(&self, program: impl Into<PathBuf>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program.into());
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("FAIRMESH_AGENT", self.agent.to_string())
            .env("FAIRMESH_CONTROL", self.control.to_string())
            .env_remove("FAIRMESH_REGION")
            .env_remove("FAIRMESH_CLIENT_ID")
            .kill_on_drop(true);
        command
    }
}
