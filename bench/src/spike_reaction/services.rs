//! A service with a server in each region, calls at a steady rate, and reports of the servers' load.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use fairmesh_calls::{Body, BoxError, ServiceHandle};
use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, RegistrationState, serve_http};
use fairmesh_wire::transport::Address;
use http::Request;
use serde_json::json;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use super::REGIONS;
use crate::mesh_processes::ControlPlane;

/// Calls per second to one service: usually, and when they fill a region.
const ORDINARY: u64 = 45;
const FULL: u32 = 100;
/// Interval of load samples. The load of a server covers the last half second, as a program's gauge would.
const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLES: usize = 5;

/// The name of a service.
pub(super) fn name(number: usize) -> String {
    format!("react/s{number}")
}

/// Declares services whose tables are planned.
pub(super) async fn declare(control: &ControlPlane, services: usize) -> Result<(), String> {
    let topology = json!({
        "kind": "Topology", "regions": REGIONS.map(|name| json!({"name": name})),
        "roundTrips": [{"between": REGIONS, "rtt": "20ms"}],
    });
    let mut documents = vec![topology];
    for number in 0..services {
        documents.push(json!({"kind": "Service", "name": name(number), "protocol": "http1"}));
        let traffic = json!({"planner": "rings", "load": {"metric": "busy", "fullScale": FULL}});
        documents.push(json!({"kind": "Policy", "service": name(number), "traffic": traffic}));
    }
    control.apply(&documents).await
}

/// A service, its servers, and its calls.
pub(super) struct Service {
    /// Servers by region.
    servers: [MeshServer; 2],
    received: Arc<[AtomicU64; 2]>,
    spikes: AtomicBool,
    calls: AtomicU64,
    failed: AtomicU64,
}

impl Service {
    /// Starts a server in each region. Returns once callers can find them.
    pub(super) async fn start(number: usize, agents: [&Address; 2]) -> Result<Self, BoxError> {
        let received = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let here = serve(number, 0, agents[0], &received).await?;
        let there = serve(number, 1, agents[1], &received).await?;
        let (calls, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { servers: [here, there], received, spikes: AtomicBool::new(false), calls, failed })
    }

    /// Doubles the calls from now on, or returns to the usual rate.
    pub(super) fn set_spike(&self, on: bool) {
        self.spikes.store(on, Relaxed);
    }

    /// Number of calls, and of failed ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.calls.load(Relaxed), self.failed.load(Relaxed))
    }

    /// Calls through the routers in turn at the current rate, regardless of whether earlier calls have ended.
    pub(super) async fn call_steadily(self: Arc<Self>, routers: Vec<ServiceHandle>) {
        let mut calls = JoinSet::new();
        for router in routers.iter().cycle() {
            let rate = ORDINARY << u64::from(self.spikes.load(Relaxed));
            sleep(Duration::from_secs_f64(1.0 / rate as f64)).await;
            while calls.try_join_next().is_some() {}
            let (this, router) = (Arc::clone(&self), router.clone());
            calls.spawn(async move {
                this.calls.fetch_add(1, Relaxed);
                let request = Request::get("/").body(Body::empty());
                let response = match request {
                    Ok(request) => router.send(request).await.ok(),
                    Err(_) => None,
                };
                if response.is_none_or(|response| !response.status().is_success()) {
                    this.failed.fetch_add(1, Relaxed);
                }
            });
        }
    }

    /// Reports the load of both servers, from the calls that arrive there.
    pub(super) async fn report_load(self: Arc<Self>) {
        let mut ticks = interval(SAMPLE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut samples = VecDeque::new();
        loop {
            ticks.tick().await;
            samples.push_back(self.received.each_ref().map(|count| count.load(Relaxed)));
            let (Some(from), Some(to)) = (samples.front(), samples.back()) else { continue };
            let elapsed = SAMPLE.as_secs_f64() * (samples.len() - 1).max(1) as f64;
            for (region, server) in self.servers.iter().enumerate() {
                let busy = (to[region] - from[region]) as f64 / elapsed / f64::from(FULL) * 100.0;
                // Fails only for an invalid metric name.
                let _ = server.metric("busy", busy);
            }
            if samples.len() > SAMPLES {
                samples.pop_front();
            }
        }
    }
}

async fn serve(
    number: usize,
    region: usize,
    agent: &Address,
    received: &Arc<[AtomicU64; 2]>,
) -> Result<MeshServer, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = MeshServer::builder(name(number).as_str())
        .instance(REGIONS[region])
        .address(listener.local_addr()?)
        .protocol(Protocol::Http1)
        .agent(agent.clone())
        .start()
        .await?;
    let registered = |state: &RegistrationState| matches!(state, RegistrationState::Registered(_));
    server.registration_state().wait_for(registered).await?;
    let received = Arc::clone(received);
    let count = async move || {
        received[region].fetch_add(1, Relaxed);
    };
    let routes = Router::new().route("/", get(count));
    let serving = server.clone();
    tokio::spawn(async move { serve_http(listener, routes, &serving).await });
    Ok(server)
}
