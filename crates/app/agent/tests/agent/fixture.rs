use std::{net::SocketAddr, path::PathBuf};

use fairmesh_agent::{AgentConfig, AgentError};
use fairmesh_model::{Location, Region};
use fairmesh_wire::transport::Address;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{BOUND, Memory, Server};

/// Addresses and directories of one agent and its upstream, in a temporary directory.
pub(crate) struct AgentFixture {
    folder: tempfile::TempDir,
    pub(crate) socket: Address,
    pub(crate) metrics: Option<SocketAddr>,
}

/// A running agent.
pub(crate) struct Agent {
    stop: CancellationToken,
    task: JoinHandle<Result<(), AgentError>>,
}

impl AgentFixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = Address::Unix(folder.path().join("agent.sock"));
        Self { folder, socket, metrics: None }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Starts an upstream, at the same address each time.
    pub(crate) async fn control(&self, memory: &Memory) -> Server {
        Server::start(memory.clone(), &self.control_address().to_string()).await
    }

    pub(crate) fn agent(&self) -> Agent {
        let config = AgentConfig {
            transport: Default::default(),
            upstreams: vec![self.control_address()],
            listen: self.socket.clone(),
            state_dir: self.state(),
            location: Location::in_region(Region::new("eu").unwrap()),
            join_token: None,
            workload_api: None,
            local_address: None,
            name: "test".into(),
            metrics: self.metrics,
            probes: None,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(fairmesh_agent::run(config, stop.clone().cancelled_owned()));
        Agent { stop, task }
    }

    fn control_address(&self) -> Address {
        Address::Unix(self.folder.path().join("control.sock"))
    }
}

impl Agent {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended().await.unwrap();
    }

    /// Waits until the agent ends without being stopped.
    pub(crate) async fn ended(self) -> Result<(), AgentError> {
        timeout(BOUND, self.task).await.expect("the agent ends").unwrap()
    }
}
