//! Uneven load over real servers, an agent and a control plane is reported as wasted cores.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_model::Protocol;
use futures_util::future::join_all;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, interval},
};

use crate::harness::{BURN, Process, Spec, World, beside_others, until};

/// CPU steps of a call to the hot server, and to the other servers.
const HOT: u64 = 10_000_000;
const COOL: u64 = HOT / 10;

/// Pause between the starts of two rounds. The figures are computed once a minute and depend only on each server's
/// share of the CPU use; other tests need CPU too.
const PAUSE: Duration = Duration::from_millis(100);

/// Well above the delay from a server to the query response, at most two and a half minutes: the rest of the minute in
/// which it starts, a whole minute if the first was nearly over, and the half minute after which a minute is complete.
const PATIENCE: Duration = Duration::from_secs(180);

/// Calls one server directly, without load balancing.
async fn call(address: SocketAddr, steps: u64) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{BURN}: {steps}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Calls every server once per round. A round begins after all calls of the previous one: with a separate loop per
/// server, a busy machine would call the hot server less often, and all would burn the same.
async fn rounds(servers: Arc<Mutex<Vec<(SocketAddr, u64)>>>) {
    let mut ticks = interval(PAUSE);
    loop {
        ticks.tick().await;
        let servers = servers.lock().unwrap().clone();
        join_all(servers.into_iter().map(|(address, steps)| call(address, steps))).await;
    }
}

/// Starts a server of the service in a separate process; returns its address.
async fn server(world: &World, instance: &str) -> (SocketAddr, Process) {
    let process = Spec::new("shop/cart", instance, Protocol::Http1).apart(world).await;
    (world.endpoint("shop/cart", instance).await.unwrap().address, process)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imbalance_report_shows_overloaded_servers_waste() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let called = Arc::new(Mutex::new(Vec::new()));
    let calling = tokio::spawn(rounds(called.clone()));
    let mut servers = Vec::new();
    for (instance, steps) in [("hot", HOT), ("cool-1", COOL), ("cool-2", COOL)] {
        let (address, process) = server(&world, instance).await;
        // Called from its start on, since a server's first report covers the time before the next server runs too.
        called.lock().unwrap().push((address, steps));
        servers.push(process);
    }
    let start = Instant::now();
    let seen: Value = loop {
        tokio::time::sleep(PAUSE * 10).await;
        let seen = world.cli(&["imbalance", "shop/cart", "--window", "1m", "--json"]).await.json();
        if seen["total"]["containers"].as_f64().unwrap() == 3.0 {
            break seen;
        }
        assert!(!calling.is_finished(), "a call failed");
        assert!(start.elapsed() < PATIENCE, "not all three servers are heard of: {seen:#}");
    };
    // CPU use of 10 + 1 + 1 = 12, and 30 if all ran at the p99: an index of 2.5, less the fixed cost of a call.
    let total = &seen["total"];
    let index = total["index"].as_f64().unwrap();
    assert!((1.6..=2.6).contains(&index), "{seen:#}");
    let sum = |name: &str| total[name].as_i64().unwrap();
    assert!(sum("wastedMillicoreMinutes") > sum("usedMillicoreMinutes") / 2, "{seen:#}");
    let causes: i64 = seen["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["wastedMillicoreMinutes"].as_i64().unwrap())
        .sum();
    assert_eq!(causes, sum("wastedMillicoreMinutes"), "{seen:#}");
    // Values shown on the dashboard.
    for name in ["containers", "used_cores", "wasted_cores"] {
        let series = format!("fairmesh_imbalance_{name}{{service=\"shop/cart\"}}");
        until(&series, async || world.control_has_metric(&series).await).await;
    }

    let lines = world.cli(&["imbalance", "--by", "region", "--json"]).await.json();
    assert_eq!(lines["lines"][0]["name"], "eu", "where the agent says that the servers run");
    let table = world.cli(&["imbalance", "--by", "cause"]).await.ok();
    assert!(table.contains("unknown"), "{table}");
    let refused = world.cli(&["imbalance", "--by", "moon"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cpu_usage_during_control_plane_outage_is_reported_afterwards() {
    let _machine = beside_others().await;
    let mut world = World::start("").await;
    let (address, mut server) = server(&world, "alone").await;
    world.control.kill().await;
    let start = Instant::now();
    while world.agent_metric("fairmesh_agent_usage_reports_queued").await < 1.0 {
        assert!(start.elapsed() < PATIENCE, "the agent hears nothing:\n{}", server.log());
        call(address, COOL).await;
        tokio::time::sleep(PAUSE).await;
    }
    // From here on, only the agent has the usage.
    server.kill().await;
    world.control.restart();
    world.control_is_up().await;
    let used = loop {
        let seen = world.cli(&["imbalance", "shop/cart", "--json"]).await.json();
        if let Some(used @ 1..) = seen["total"]["usedMillicoreMinutes"].as_u64() {
            break used;
        }
        assert!(start.elapsed() < PATIENCE, "it is not passed on: {seen:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(
        used <= 2 * 1_000,
        "one caller at a time keeps at most one core busy, in at most two minutes: {used}"
    );
    let done = async || world.agent_metric("fairmesh_agent_usage_reports_queued").await == 0.0;
    until("nothing waits any more", done).await;
}
