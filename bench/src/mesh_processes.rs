//! The processes of a mesh as released: a control plane and agents.

use std::{net::SocketAddr, path::Path, process::Command};

use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Location, Record, RecordKey, Region, ServiceName,
    spec::{Document, Resource},
};
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::Address,
    v1,
};

use crate::{proxy::process::Process, roles::free_port};

/// A control plane with its data in a folder, and a connection to it.
pub(crate) struct ControlPlane {
    _process: Process,
    pub(crate) grpc: SocketAddr,
    /// Address that agents use; they join without a token.
    upstream: Address,
    pub(crate) connection: Connection,
}

impl ControlPlane {
    /// Starts a control plane without identities, and waits until it serves.
    pub(crate) async fn start(dir: &Path) -> Result<Self, String> {
        Self::start_with(dir, "none").await
    }

    /// Starts a control plane with a trust domain, whose authority may already be in `control/ca`.
    pub(crate) async fn start_with(dir: &Path, trust_domain: &str) -> Result<Self, String> {
        let (grpc, http) = (port()?, port()?);
        let folder = dir.join("control");
        // Without a trust domain there is nothing to join.
        let upstream = match trust_domain {
            "none" => Address::Tcp(grpc.to_string()),
            _ => Address::Unix(folder.join("control.sock")),
        };
        let data = folder.display().to_string();
        let args = ["control", "--trust-domain", trust_domain, "--data-dir", &data].map(str::to_owned);
        let args =
            [&args[..], &["--grpc", &grpc.to_string(), "--admin", &http.to_string()].map(str::to_owned)];
        let mut process = Process::start(dir, "control", fairmesh(&args.concat())?)?;
        let connect = async || handshake::connect(&Default::default(), &upstream, "bench").await;
        process
            .ready(async || connect().await.is_ok())
            .await
            .map_err(|e| format!("the control plane {e}"))?;
        let connection = connect().await.map_err(|e| e.to_string())?;
        Ok(Self { _process: process, grpc, upstream, connection })
    }

    /// Applies documents.
    pub(crate) async fn apply(&self, documents: &[serde_json::Value]) -> Result<(), String> {
        let ops = documents.iter().map(ops).collect::<Result<Vec<_>, _>>()?.concat();
        let applied = self.connection.admin().apply(v1::ApplyRequest { ops, ..Default::default() }).await;
        applied.map(|_| ()).map_err(|status| format!("apply failed: {}", status.message()))
    }
}

/// The write operations for a document.
pub(crate) fn ops(document: &serde_json::Value) -> Result<Vec<v1::Op>, String> {
    let document: Document = serde_json::from_value(document.clone()).map_err(|e| e.to_string())?;
    let records = match document.validate().map_err(|e| e.to_string())? {
        Resource::Service(name, service) => vec![(RecordKey::Service(name), Record::from(service))],
        Resource::Policy(name, policy) => vec![(RecordKey::Policy(name), Record::from(policy))],
        Resource::Topology(regions, round_trips) => {
            let round_trips = (RecordKey::RoundTrips, Record::RoundTrips(round_trips));
            vec![(RecordKey::Regions, Record::Regions(regions)), round_trips]
        }
        _ => return Err("a kind of document that is not declared here".into()),
    };
    let op = |(key, record): (RecordKey, Record)| v1::Op {
        key: key.to_string(),
        value: Some(record_encoding::encode(&record)),
        condition: None,
    };
    Ok(records.into_iter().map(op).collect())
}

/// The write of an endpoint, which stays regardless of whether something listens there.
pub(crate) fn endpoint(
    service: &str,
    region: &str,
    (instance, address): (&str, SocketAddr),
) -> Result<v1::Op, String> {
    let service = ServiceName::new(service).map_err(|e| e.to_string())?;
    let region = Region::new(region).map_err(|e| e.to_string())?;
    let instance = InstanceId::new(instance).map_err(|e| e.to_string())?;
    let endpoint = Endpoint {
        mtls: false,
        instance: instance.clone(),
        address,
        location: Location::in_region(region.clone()),
        state: EndpointState::Serving,
        weight: FULL_WEIGHT,
        lease: None,
        labels: Default::default(),
    };
    let key = RecordKey::Endpoint(service, region, instance).to_string();
    Ok(v1::Op { key, value: Some(record_encoding::encode(&Record::from(endpoint))), condition: None })
}

/// Starts the agent of a region, and waits until it listens at `socket` in the folder.
pub(crate) async fn start_agent(
    dir: &Path,
    control: &ControlPlane,
    region: &str,
    socket: &str,
) -> Result<(Process, Address), String> {
    let socket = dir.join(socket);
    let listen = format!("unix:{}", socket.display());
    let state = dir.join(format!("agent-{region}")).display().to_string();
    let args = format!("agent --control {} --region {region} --name {region} --admin none", control.upstream);
    let mut args: Vec<String> = args.split(' ').map(str::to_owned).collect();
    args.extend(["--listen".to_owned(), listen.clone(), "--state-dir".to_owned(), state]);
    let mut agent = Process::start(dir, &format!("agent-{region}"), fairmesh(&args)?)?;
    agent.ready(async || socket.exists()).await.map_err(|e| format!("the agent of {region} {e}"))?;
    let address = listen.parse().map_err(|e| format!("the agent's address: {e}"))?;
    Ok((agent, address))
}

/// The `fairmesh` command in the directory of this program.
pub(crate) fn fairmesh(args: &[String]) -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(this.with_file_name("fairmesh"));
    command.args(args).env("FAIRMESH_LOG", "warn");
    Ok(command)
}

/// A free loopback port.
pub(crate) fn port() -> Result<SocketAddr, String> {
    free_port().map_err(|e| format!("no port: {e}"))
}
