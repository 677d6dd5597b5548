use std::{net::SocketAddr, path::PathBuf};

use fairmesh_agent::AgentConfig;
use fairmesh_model::{Location, Region};
use fairmesh_replica::{Replica, ReplicaConfig, ReplicaError};
use fairmesh_test_support::free_port;
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::support::{BOUND, Memory, Server};

/// A folder with a socket and a state folder for each named process.
pub(crate) struct Processes {
    folder: tempfile::TempDir,
}

/// A process that runs until it is stopped.
pub(crate) struct Running<E> {
    pub(crate) address: Address,
    pub(crate) metrics: Option<SocketAddr>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), E>>,
}

impl Processes {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn socket(&self, name: &str) -> Address {
        Address::Unix(self.folder.path().join(format!("{name}.sock")))
    }

    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of a replica's copy.
    pub(crate) fn copy(&self, name: &str) -> PathBuf {
        self.state(name).join("copy.redb")
    }

    /// Starts an in-memory control plane, always at the same address.
    pub(crate) async fn control(&self, name: &str, memory: &Memory) -> Server {
        Server::start(memory.clone(), &self.socket(name).to_string()).await
    }

    pub(crate) async fn replica(&self, name: &str, upstreams: &[Address]) -> Running<ReplicaError> {
        self.try_replica(name, upstreams).await.unwrap()
    }

    pub(crate) async fn try_replica(
        &self,
        name: &str,
        upstreams: &[Address],
    ) -> Result<Running<ReplicaError>, ReplicaError> {
        let address = self.socket(name);
        let metrics = Some(([127, 0, 0, 1], free_port()).into());
        let config = ReplicaConfig {
            transport: Default::default(),
            upstreams: upstreams.to_vec(),
            listen: vec![address.clone()],
            state_dir: self.state(name),
            advertise: Vec::new(),
            name: name.into(),
            region: None,
            metrics,
        };
        let replica = Replica::start(config).await?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(replica.run(stop.clone().cancelled_owned()));
        Ok(Running { address, metrics, stop, task })
    }

    pub(crate) fn agent(&self, name: &str, upstream: &Address) -> Running<fairmesh_agent::AgentError> {
        let address = self.socket(name);
        let config = AgentConfig {
            transport: Default::default(),
            upstreams: vec![upstream.clone()],
            listen: address.clone(),
            state_dir: self.state(name),
            location: Location::in_region(Region::new("eu").unwrap()),
            join_token: None,
            workload_api: None,
            local_address: None,
            name: name.into(),
            metrics: None,
            probes: None,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(fairmesh_agent::run(config, stop.clone().cancelled_owned()));
        Running { address, metrics: None, stop, task }
    }
}

impl<E: std::fmt::Debug> Running<E> {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        timeout(BOUND, self.task).await.expect("it ends").unwrap().unwrap();
    }

    pub(crate) async fn connect(&self) -> Connection {
        let connecting = async {
            loop {
                match handshake::connect(&Default::default(), &self.address, "test").await {
                    Ok(connection) => return connection,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        timeout(BOUND, connecting).await.expect("it listens")
    }

    /// Returns the HTTP response for a path, with headers and body.
    pub(crate) async fn page(&self, path: &str) -> String {
        let requesting = async {
            let mut stream = TcpStream::connect(self.metrics.unwrap()).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: replica\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            response
        };
        timeout(BOUND, requesting).await.expect("the page is served")
    }

    /// Asserts that `/metrics` has these lines, given without their common prefix.
    pub(crate) async fn shows(&self, lines: &[&str]) {
        let page = self.page("/metrics").await;
        for line in lines {
            assert!(page.contains(&format!("fairmesh_replica_{line}\n")), "{line} in {page}");
        }
    }
}
