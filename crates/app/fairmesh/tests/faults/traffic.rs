//! The planner of region tables, from reported load to calls that move to another region.

mod zones;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::ServiceHandle;
use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use fairmesh_wire::lookaside::v1::{PickRequest, ReportRequest, Result as CallResult};
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use crate::{
    harness::{Caller, Kind, Spec, World, beside_others, until},
    lookaside::Lookaside,
};

/// Calls per second that fully load a region.
const FULL: f64 = 100.0;
/// Calls per second on an ordinary day, and during the spike.
const ORDINARY: u64 = 55;
const SPIKE: u64 = 95;

const YAML: &str = "{kind: Service, name: shop/cart, type: replicated, protocol: http1}\n---\n\
    {kind: Topology, regions: [{name: eu}, {name: us}], roundTrips: [{between: [eu, us], rtt: 20ms}]}\n---\n\
    kind: Policy\nservice: shop/cart\ntraffic: {planner: rings, load: {metric: busy, fullScale: 100}}\n";

/// Callers in `eu` and the outcomes of their calls.
#[derive(Default)]
struct Calls {
    per_second: AtomicU64,
    answers: Mutex<BTreeMap<String, u64>>,
    failures: Mutex<Vec<String>>,
    /// Whether the servers of `eu` report ten times their load.
    lies: AtomicBool,
}

impl Calls {
    fn answered_by(&self, instance: &str) -> u64 {
        self.answers.lock().unwrap().get(instance).copied().unwrap_or_default()
    }

    /// Makes calls at the wanted rate without waiting for earlier ones. Each call has a scheduled time, so that late
    /// wake-ups on a busy machine do not lower the rate.
    async fn make(self: Arc<Self>, service: ServiceHandle) {
        let caller = Caller::new(&service, Kind::Get);
        let mut calls = JoinSet::new();
        let mut due = Instant::now();
        for number in 0.. {
            due += Duration::from_secs_f64(1.0 / self.per_second.load(Relaxed) as f64);
            sleep_until(due).await;
            while calls.try_join_next().is_some() {}
            let (this, caller) = (Arc::clone(&self), caller.clone());
            calls.spawn(async move {
                match caller.call(number).await {
                    Ok(instance) => *this.answers.lock().unwrap().entry(instance).or_default() += 1,
                    Err((_, failure)) => this.failures.lock().unwrap().push(failure),
                }
            });
        }
    }

    /// Reports the load of a server: its rate of requests.
    async fn measure(self: Arc<Self>, server: MeshServer, instance: &'static str) {
        let mut ticks = interval(Duration::from_millis(500));
        // A late tick is followed by a whole interval, so that calls which waited for it do not look like a peak.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut before, mut at) = (0, Instant::now());
        loop {
            ticks.tick().await;
            let (now, count) = (Instant::now(), self.answered_by(instance));
            let elapsed = (now - at).as_secs_f64().max(0.001);
            let busy = (count - before) as f64 / elapsed / FULL * 100.0;
            let factor = if self.lies.load(Relaxed) && instance == "here" { 10.0 } else { 1.0 };
            server.layer().metric("busy", busy * factor).unwrap();
            (before, at) = (count, now);
        }
    }

    /// Percentage of the next calls that are served in `eu`.
    async fn percent_here(&self) -> f64 {
        let of = || (self.answered_by("here"), self.answered_by("there"));
        let before = of();
        until("calls go on", async || {
            let now = of();
            now.0 + now.1 >= before.0 + before.1 + 150
        })
        .await;
        let now = of();
        let (here, there) = ((now.0 - before.0) as f64, (now.1 - before.1) as f64);
        here / (here + there) * 100.0
    }
}

async fn status(world: &World) -> Value {
    world.cli(&["traffic", "status", "shop/cart", "--json"]).await.json()[0].clone()
}

/// Latest planning round whose table is stored.
async fn confirmed_round(world: &World) -> u64 {
    let stored = world.cli(&["get", "tables", "shop/cart", "--json"]).await.json();
    stored.as_array().unwrap().iter().filter_map(|table| table["confirmedRound"].as_u64()).max().unwrap_or(0)
}

/// Waits until the planner has planned in a round after this one.
async fn plans_after(world: &World, round: u64) {
    until("the planner plans", async || {
        let status = status(world).await;
        status["refusal"].is_null() && status["round"].as_u64().is_some_and(|now| now > round)
    })
    .await;
}

/// Holds the planner and resumes it, as an operator would.
async fn hold_and_resume(world: &World) {
    let told = world.cli(&["traffic", "hold", "shop/cart"]).await.ok();
    assert!(told.contains("is now held"), "{told}");
    until("the planner holds", async || {
        let status = status(world).await;
        status["mode"] == "hold" && status["refusal"] == "the policy holds the tables"
    })
    .await;
    let round = status(world).await["round"].as_u64().unwrap();
    world.cli(&["traffic", "resume", "shop/cart"]).await.ok();
    plans_after(world, round).await;
    let unplanned = world.cli(&["traffic", "hold", "shop/stock"]).await;
    assert!(unplanned.code == Some(1) && unplanned.err.contains("no service shop/stock"), "{unplanned:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_spike_shifts_calls_without_failures() {
    let _machine = beside_others().await;
    let mut world = World::start(YAML).await;
    let (_agent, there) = world.another_agent_in("us", "there").await;
    let here = Spec::new("shop/cart", "here", Protocol::Http1).here(&world).await;
    let far = Spec::new("shop/cart", "there", Protocol::Http1).serve(there).await;
    let calls = Arc::new(Calls { per_second: ORDINARY.into(), ..Calls::default() });
    let mesh = world.mesh().await;
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&calls).make(mesh.service("shop/cart").unwrap()));
    tasks.spawn(Arc::clone(&calls).measure(here.server.clone(), "here"));
    tasks.spawn(Arc::clone(&calls).measure(far.server.clone(), "there"));

    plans_after(&world, 0).await;
    assert_eq!(calls.percent_here().await, 100.0, "no region is above a threshold");

    calls.per_second.store(SPIKE, Relaxed);
    until("the region is below the threshold of the next ring", async || {
        let percent = calls.percent_here().await;
        percent > 50.0 && percent * SPIKE as f64 / FULL < 80.0
    })
    .await;
    let told = world.cli(&["traffic", "explain", "shop/cart", "--region", "eu"]).await.ok();
    assert!(told.contains("eu to us") && told.contains("above 75.0 %"), "{told}");
    let shown = world.cli(&["traffic", "status"]).await.ok();
    assert!(shown.contains("shop/cart: active; round ") && shown.contains("eu to us"), "{shown}");

    // The false report is rejected, and the tables stay.
    calls.lies.store(true, Relaxed);
    until("the lie is refused", async || {
        status(&world).await["refusal"].as_str().is_some_and(|why| why.contains("region eu"))
    })
    .await;
    assert!(calls.percent_here().await < 97.0, "the tables stay");
    calls.lies.store(false, Relaxed);

    // Without a control plane the tables stay in force; a new control plane continues with them.
    let mut confirmed = 0;
    until("a late round is confirmed", async || {
        confirmed = confirmed_round(&world).await;
        confirmed > 10
    })
    .await;
    world.control.kill().await;
    assert!(calls.percent_here().await < 97.0, "the tables stay");
    world.control.restart();
    world.control_is_up().await;
    plans_after(&world, 0).await;
    let round = status(&world).await["round"].as_u64().unwrap();
    assert!(round > confirmed, "rounds are begun anew: {round} after {confirmed}");
    assert!(calls.percent_here().await < 97.0, "the next control plane continues");

    hold_and_resume(&world).await;
    tasks.abort_all();
    assert_eq!(*calls.failures.lock().unwrap(), Vec::<String>::new());
    far.stop().await;
    here.stop().await;
}

/// Checks the forecast for a drain of `eu` at 40 calls/s: load and latency by region.
async fn is_foretold(world: &World, drain: &[&str]) {
    let forecast = world.cli(&[drain, &["--dry-run", "--json"]].concat()).await.json();
    let service = &forecast["forecast"]["services"][0];
    let leaving = service["leavingPerSecond"].as_f64().unwrap();
    assert!((leaving - 40.0).abs() < 6.0 && service["droppedPerSecond"] == 0.0, "{forecast}");
    let us = service["regions"].as_array().unwrap().iter().find(|region| region["region"] == "us").unwrap();
    let after = us["loadAfter"].as_f64().unwrap();
    assert!((0.3..0.5).contains(&after) && us["roundTripMicros"] == 20_000 && us["full"] == false, "{us}");
    let time = |region: &Value, field: &str| region[field].as_f64().map(|micros| micros / 1_000.0);
    let eu = service["regions"].as_array().unwrap().iter().find(|region| region["region"] == "eu").unwrap();
    assert!(time(eu, "timeNowMicros").is_some() && time(eu, "timeAfterMicros").is_none(), "{eu}");
    // The servers in `us` have no calls yet; the forecast assumes the same speed as in `eu`.
    let (now, after) = (time(eu, "timeNowMicros").unwrap(), time(us, "timeAfterMicros").unwrap());
    assert!(time(us, "timeNowMicros").is_none() && (after - now - 20.0).abs() < 0.1, "{now} {us}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn region_drain_continues_stepwise_across_restart() {
    let _machine = beside_others().await;
    let mut world = World::start(YAML).await;
    let (_agent, there) = world.another_agent_in("us", "there").await;
    let here = Spec::new("shop/cart", "here", Protocol::Http1).here(&world).await;
    let far = Spec::new("shop/cart", "there", Protocol::Http1).serve(there).await;
    let calls = Arc::new(Calls { per_second: 40.into(), ..Calls::default() });
    let mesh = world.mesh().await;
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&calls).make(mesh.service("shop/cart").unwrap()));
    tasks.spawn(Arc::clone(&calls).measure(here.server.clone(), "here"));
    tasks.spawn(Arc::clone(&calls).measure(far.server.clone(), "there"));
    plans_after(&world, 3).await;

    let drain = ["drain", "--region", "eu", "--over", "0s"];
    let unconfirmed = world.cli(&drain).await;
    assert!(unconfirmed.code == Some(2) && unconfirmed.err.contains("add --yes"), "{unconfirmed:?}");
    is_foretold(&world, &drain).await;
    assert_eq!(calls.percent_here().await, 100.0, "a forecast changes nothing");

    world.cli(&[&drain[..], &["--yes", "--detach"]].concat()).await.ok();
    until("a few steps are made", async || {
        let shown = world.cli(&["traffic", "status"]).await.ok();
        ["70", "60", "50"].iter().any(|keep| {
            shown.contains("region eu is draining, ") && shown.contains(&format!("keeps {keep} %"))
        })
    })
    .await;
    world.control.kill().await;
    world.control.restart();
    world.control_is_up().await;
    until("the next control plane carries it on to its end", async || {
        let shown = world.cli(&["traffic", "status"]).await.ok();
        shown.contains("region eu is drained: it keeps 0 % of its calls; done")
    })
    .await;
    assert!(calls.percent_here().await < 10.0, "its own callers have left");
    let listed = world.cli(&["get", "tables", "shop/cart", "--json"]).await.json();
    assert!(listed.as_array().unwrap().iter().any(|table| table["toPercent"]["us"] == 100.0), "{listed}");

    world.cli(&["undrain", "--region", "eu", "--over", "0s", "--detach"]).await.ok();
    let shown = world.cli(&["traffic", "status"]).await.ok();
    assert!(shown.contains("region eu is returning, "), "{shown}");
    until("calls come back", async || calls.percent_here().await > 10.0).await;
    tasks.abort_all();
    assert_eq!(*calls.failures.lock().unwrap(), Vec::<String>::new());
    far.stop().await;
    here.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_forwards_call_and_load_reports_of_agents_below_it() {
    let _machine = beside_others().await;
    let world = World::start(YAML).await;
    let (_processes, there) = world.another_agent_below_a_replica("us", "there").await;
    let here = Spec::new("shop/cart", "here", Protocol::Http1).here(&world).await;
    let far = Spec::new("shop/cart", "there", Protocol::Http1).serve(there.clone()).await;
    let calls = Arc::new(Calls { per_second: 40.into(), ..Calls::default() });
    let mesh = world.mesh_of(there).await;
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&calls).make(mesh.service("shop/cart").unwrap()));
    tasks.spawn(Arc::clone(&calls).measure(here.server.clone(), "here"));
    tasks.spawn(Arc::clone(&calls).measure(far.server.clone(), "there"));
    until("the load of the region below the replica is planned from", async || {
        let status = status(&world).await;
        let regions = status["regions"].as_array().unwrap();
        let us = regions.iter().find(|region| region["region"] == "us");
        status["refusal"].is_null()
            && us.is_some_and(|us| {
                let near = |field: &Value| field.as_f64().is_some_and(|rate| (30.0..50.0).contains(&rate));
                near(&us["offeredPerSecond"][0]) && near(&us["receivedPerSecond"])
            })
    })
    .await;
    tasks.abort_all();
    assert_eq!(*calls.failures.lock().unwrap(), Vec::<String>::new());
    far.stop().await;
    here.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookaside_leased_calls_are_counted() {
    let _machine = beside_others().await;
    let world = World::start(YAML).await;
    let server = Spec::new("shop/cart", "here", Protocol::Http1).here(&world).await;
    world.serves("shop/cart", "here").await;
    let lookaside = Lookaside::start(&world, "").await;
    until("its calls are counted", async || {
        let mut caller = lookaside.caller().await;
        let request = PickRequest { service: "shop/cart".into(), endpoints: 1, ..PickRequest::default() };
        let lease = caller.pick(request).await.unwrap().into_inner().leases[0].id;
        let result = CallResult { lease, calls: 50, done: true, ..CallResult::default() };
        caller.report(ReportRequest { results: vec![result] }).await.unwrap();
        let status = status(&world).await;
        status["regions"][0]["offeredPerSecond"][0].as_f64().is_some_and(|rate| rate > 1.0)
    })
    .await;
    server.stop().await;
}
