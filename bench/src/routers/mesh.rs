//! Control plane, agent and proxy as processes, and the records written to them.

use std::{net::SocketAddr, path::Path, time::Duration};

use fairmesh_wire::v1;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::calls::{Calls, Connection, Endpoints};
use crate::{
    mesh_processes::{self, ControlPlane, endpoint, fairmesh, port, start_agent},
    proxy::process::Process,
};

/// Number of services declared in one write, with three records each.
const BATCH: usize = 500;
/// Maximum time until a change affects calls.
const EFFECT: Duration = Duration::from_secs(10);
const REGION: &str = "bench";

pub(super) struct Mesh {
    proxy: Process,
    agent: Process,
    control: ControlPlane,
    at: SocketAddr,
}

impl Mesh {
    /// Starts the three processes, and waits until the proxy serves.
    pub(super) async fn start(dir: &Path) -> Result<Self, String> {
        let control = ControlPlane::start(dir).await?;
        let (agent, agent_at) = start_agent(dir, &control, REGION, "agent.sock").await?;
        let (at, admin) = (port()?, port()?);
        let args = format!("proxy --agent {agent_at} --listen {at} --admin {admin} --client-id bench");
        let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
        let mut proxy = Process::start(dir, "proxy", fairmesh(&args)?)?;
        proxy
            .ready(async || Connection::open(at).await.is_ok())
            .await
            .map_err(|e| format!("the proxy {e}"))?;
        Ok(Self { proxy, agent, control, at })
    }

    /// Address of the proxy for programs.
    pub(super) fn proxy(&self) -> SocketAddr {
        self.at
    }

    /// Resident memory of the proxy and of the agent, in bytes.
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
            ops.extend(mesh_processes::ops(&declared)?);
            ops.extend(mesh_processes::ops(&policy(service, 503))?);
            let instance = format!("s{service}-0");
            ops.push(endpoint(&name(service), REGION, (&instance, endpoints.of(service)))?);
        }
        let written = self.control.connection.rib().write(v1::WriteRequest { ops }).await;
        written.map(|_| ()).map_err(|status| format!("a write failed: {}", status.message()))
    }

    /// Changes policies of called services one after the other, and calls each until the change takes effect, while
    /// other services are called.
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

    /// Applies a policy, and calls until a response follows it. Returns the time in milliseconds.
    async fn change(
        &self,
        connection: &mut Connection,
        service: usize,
        change: usize,
    ) -> Result<f64, String> {
        // A status that differs from that of earlier changes to the service.
        let status = 400 + u16::try_from(change % 100).unwrap_or_default();
        let policy = policy(service, status);
        let began = Instant::now();
        self.control.apply(&[policy]).await?;
        while began.elapsed() < EFFECT {
            if connection.call(service, "/fault").await?.0 == status {
                return Ok(began.elapsed().as_secs_f64() * 1e3);
            }
        }
        Err(format!("a change of service {service} has no effect within {EFFECT:?}"))
    }
}

fn name(service: usize) -> String {
    format!("bench/s{service}")
}

/// A policy with two routes: one responds with a status, the other matches some paths and headers.
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
