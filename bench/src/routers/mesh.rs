//! Control plane, agent and proxy as processes, and what is written to them.

use std::{net::SocketAddr, path::Path, process::Command, time::Duration};

use bytes::Bytes;
use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Location, Record, RecordKey, Region, ServiceName,
    spec::{Document, Resource},
};
use fairmesh_wire::{
    handshake::{self, Connection as Control},
    records,
    transport::Address,
    v1,
};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::calls::{Calls, Connection, Endpoints};
use crate::{proxy::process::Process, roles::free_port};

/// Services that are declared with one write, of three records each.
const BATCH: usize = 500;
/// How long a change may take until calls see it.
const EFFECT: Duration = Duration::from_secs(10);
const REGION: &str = "bench";

pub(super) struct Mesh {
    proxy: Process,
    agent: Process,
    _control: Process,
    writer: Control,
    at: SocketAddr,
}

impl Mesh {
    /// Starts the three, and waits until the proxy serves.
    pub(super) async fn start(dir: &Path) -> Result<Self, String> {
        let port = || free_port().map_err(|e| format!("no port: {e}"));
        let (grpc, http, at, admin) = (port()?, port()?, port()?, port()?);
        let agent_at = format!("unix:{}", dir.join("agent.sock").display());
        let folder = |name: &str| dir.join(name).display().to_string();
        let start = |name: &str, args: &[String]| Process::start(dir, name, fairmesh(args)?);
        let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();

        let args = format!(
            "control --trust-domain none --grpc {grpc} --http {http} --data-dir {}",
            folder("control")
        );
        let mut control = start("control", &words(args))?;
        let is_there = async || {
            handshake::connect(&Default::default(), &Address::Tcp(grpc.to_string()), "bench").await.is_ok()
        };
        control.ready(is_there).await.map_err(|e| format!("the control plane {e}"))?;
        let writer = handshake::connect(&Default::default(), &Address::Tcp(grpc.to_string()), "bench").await;
        let writer = writer.map_err(|e| e.to_string())?;

        let state = folder("agent");
        let args = format!(
            "agent --control {grpc} --listen {agent_at} --state-dir {state} --region {REGION} --metrics none"
        );
        let mut agent = start("agent", &words(args))?;
        let socket = dir.join("agent.sock");
        agent.ready(async || socket.exists()).await.map_err(|e| format!("the agent {e}"))?;

        let args = format!("proxy --agent {agent_at} --listen {at} --admin {admin} --client-id bench");
        let mut proxy = start("proxy", &words(args))?;
        proxy
            .ready(async || Connection::open(at).await.is_ok())
            .await
            .map_err(|e| format!("the proxy {e}"))?;
        Ok(Self { proxy, agent, _control: control, writer, at })
    }

    /// Where programs connect.
    pub(super) fn proxy(&self) -> SocketAddr {
        self.at
    }

    /// Memory of the proxy and of the agent, in bytes.
    pub(super) fn resident(&self) -> (u64, u64) {
        (self.proxy.rss_bytes(), self.agent.rss_bytes())
    }

    /// Declares services, each with a policy of two routes and one endpoint.
    pub(super) async fn declare(&self, services: usize, endpoints: &Endpoints) -> Result<(), String> {
        for from in (0..services).step_by(BATCH) {
            self.write(from..services.min(from + BATCH), endpoints).await?;
        }
        Ok(())
    }

    pub(super) async fn declare_one(&self, service: usize, endpoints: &Endpoints) -> Result<(), String> {
        self.write(service..service + 1, endpoints).await
    }

    async fn write(&self, services: std::ops::Range<usize>, endpoints: &Endpoints) -> Result<(), String> {
        let mut ops = Vec::new();
        for service in services {
            let declared = json!({ "kind": "Service", "name": name(service) });
            ops.extend([
                op(&declared)?,
                op(&policy(service, 503))?,
                endpoint(service, endpoints.of(service))?,
            ]);
        }
        let written = self.writer.rib().write(v1::WriteRequest { ops }).await;
        written.map(|_| ()).map_err(|status| format!("a write failed: {}", status.message()))
    }

    /// Applies a change to policies of called services one after the other, and calls until it is seen, while others
    /// are called.
    pub(super) async fn changes(&self, services: usize, count: usize, load: u64) -> Result<Calls, String> {
        let at = self.at;
        let loading = tokio::spawn(async move {
            let mut connection = Connection::open(at).await?;
            let mut ticks = interval(Duration::from_nanos(1_000_000_000 / load));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            for service in (0..services).cycle() {
                ticks.tick().await;
                connection.call(service, "/").await?;
            }
            Ok::<_, String>(())
        });
        let (mut calls, mut connection) = (Calls::default(), Connection::open(at).await?);
        for change in 0..count {
            calls.take(self.change(&mut connection, change * 7919 % services, change).await);
            sleep(Duration::from_millis(10)).await;
        }
        loading.abort();
        Ok(calls)
    }

    /// Applies a policy, and calls until a response is by it; how many milliseconds that took.
    async fn change(
        &self,
        connection: &mut Connection,
        service: usize,
        change: usize,
    ) -> Result<f64, String> {
        // Another status than before, whatever was applied to the service before.
        let status = 400 + u16::try_from(change % 100).unwrap_or_default();
        let ops = vec![op(&policy(service, status))?];
        let began = Instant::now();
        let applied =
            self.writer.admin().apply(v1::ApplyRequest { ops, dry_run: false, ..Default::default() }).await;
        applied.map_err(|status| format!("apply failed: {}", status.message()))?;
        while began.elapsed() < EFFECT {
            if connection.call(service, "/fault").await?.0 == status {
                return Ok(began.elapsed().as_secs_f64() * 1e3);
            }
        }
        Err(format!("a change of service {service} has no effect within {EFFECT:?}"))
    }
}

fn fairmesh(args: &[String]) -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(this.with_file_name("fairmesh"));
    command.args(args).env("FAIRMESH_LOG", "warn");
    Ok(command)
}

fn name(service: usize) -> String {
    format!("bench/s{service}")
}

/// Two routes: one responds with a status, the other is for calls of some paths and headers.
fn policy(service: usize, status: u16) -> serde_json::Value {
    json!({
        "kind": "Policy",
        "service": name(service),
        "routes": [
            {
                "name": "fault",
                "match": { "path": { "exact": "/fault" } },
                "fault": { "abort": { "share": "100%", "status": status } },
            },
            {
                "name": "read",
                "match": { "path": { "prefix": "/v2" }, "headers": [{ "name": "x-tier", "exact": "gold" }] },
                "timeout": "2s",
                "idempotent": true,
            },
        ],
    })
}

/// The write of what a document says.
fn op(document: &serde_json::Value) -> Result<v1::Op, String> {
    let document: Document = serde_json::from_value(document.clone()).map_err(|e| e.to_string())?;
    let (key, record) = match document.validate().map_err(|e| e.to_string())? {
        Resource::Service(name, service) => (RecordKey::Service(name), Record::from(service)),
        Resource::Policy(name, policy) => (RecordKey::Policy(name), Record::from(policy)),
        _ => return Err("neither a service nor a policy".into()),
    };
    Ok(put(&key, records::encode(&record)))
}

fn endpoint(service: usize, address: SocketAddr) -> Result<v1::Op, String> {
    let (region, instance) = (Region::new(REGION), InstanceId::new(format!("s{service}-0")));
    let (region, instance) = (region.map_err(|e| e.to_string())?, instance.map_err(|e| e.to_string())?);
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
    let name = ServiceName::new(name(service)).map_err(|e| e.to_string())?;
    Ok(put(&RecordKey::Endpoint(name, region, instance), records::encode(&Record::from(endpoint))))
}

fn put(key: &RecordKey, value: Bytes) -> v1::Op {
    v1::Op { key: key.to_string(), value: Some(value), condition: None }
}
