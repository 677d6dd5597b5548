//! Uneven load over real servers, an agent and a control plane, seen as wasted cores.

use std::{net::SocketAddr, time::Duration};

use fairmesh_model::Protocol;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};

use crate::harness::{BURN, Spec, World, alone};

/// What a call to the hot server burns, and what one to the others does.
const HOT: u64 = 10_000_000;
const COOL: u64 = HOT / 10;

/// Well above what figures take from a server to an answer, which is within a minute and a half: two readings, one round
/// of the agent, and another minute where the first was nearly over.
const PATIENCE: Duration = Duration::from_secs(120);

/// One call to one server, past every balancer.
async fn call(address: SocketAddr, steps: u64) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{BURN}: {steps}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_gets_ten_times_the_work_shows_as_wasted_cores() {
    let _machine = alone().await;
    let world = World::start("").await;
    let mut servers = Vec::new();
    for (instance, steps) in [("hot", HOT), ("cool-1", COOL), ("cool-2", COOL)] {
        let process = Spec::new("shop/cart", instance, Protocol::Http1).apart(&world).await;
        let address = world.endpoint("shop/cart", instance).await.unwrap().address;
        servers.push((address, steps, process));
    }
    let start = Instant::now();
    let seen: Value = loop {
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(1) {
            for (address, steps, _) in &servers {
                call(*address, *steps).await;
            }
        }
        let seen = world.cli(&["imbalance", "shop/cart", "--window", "1m", "--json"]).await.json();
        if seen["total"]["containers"].as_f64().unwrap() == 3.0 {
            break seen;
        }
        assert!(start.elapsed() < PATIENCE, "not all three servers are heard of: {seen:#}");
    };
    // One at 10 and two at 1 use 12 and would use 30 at the p99: an index of 2.5, less what a call costs in itself.
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

    let lines = world.cli(&["imbalance", "--by", "region", "--json"]).await.json();
    assert_eq!(lines["lines"][0]["name"], "eu", "where the agent says that the servers run");
    let table = world.cli(&["imbalance", "--by", "cause"]).await.ok();
    assert!(table.contains("unknown"), "{table}");
    let refused = world.cli(&["imbalance", "--by", "moon"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
}
