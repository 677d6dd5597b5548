//! Zones of a region with real processes: a small zone sends its excess calls to the other zone.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{Body, Mesh, ServiceHandle};
use fairmesh_model::{Location, Protocol, Region, Zone};
use fairmesh_server::{MeshServer, serve_http};
use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinSet, time::interval};

use super::{plans_after, status};
use crate::harness::{World, beside_others, until};

const YAML: &str = "{kind: Service, name: shop/cart, type: replicated, protocol: http1}\n---\n\
    {kind: Topology, regions: [{name: eu}]}\n---\n\
    kind: Policy\nservice: shop/cart\nlocality: {rings: [zone, any]}\n\
    traffic: {planner: rings, load: {metric: busy, fullScale: 100}}\n";

/// Calls per second of the callers in each zone. With one server per zone, the fair share of a zone is 40, of which it
/// keeps 1.05 ×: 70 % of the first zone's calls stay.
const CALLS: [(&str, f64); 2] = [("eu-a", 60.0), ("eu-b", 20.0)];
const BODY: usize = 1000;
/// Metric of the bytes per second between zones.
const CROSSING: &str = "fairmesh_traffic_zone_bytes_per_second{region=\"eu\"}";

/// Number of responses by the caller's zone and the server's zone.
type Answers = Arc<Mutex<BTreeMap<(&'static str, String), u64>>>;

fn location(zone: &str) -> Location {
    Location { zone: Some(Zone::new(zone).unwrap()), ..Location::in_region(Region::new("eu").unwrap()) }
}

/// A server in a zone, whose responses name the zone.
async fn serve(world: &World, zone: &'static str) -> MeshServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let builder = MeshServer::builder("shop/cart").instance(zone).address(listener.local_addr().unwrap());
    let builder = builder.protocol(Protocol::Http1).location(location(zone)).agent(world.agent_address());
    let server = builder.start().await.unwrap();
    server.layer().metric("busy", 30.0).unwrap();
    let respond = move |_: Request<Incoming>| async move {
        let response = Response::builder().header("x-zone", zone).body("x".repeat(BODY));
        Ok::<_, Infallible>(response.unwrap())
    };
    let serving = server.clone();
    tokio::spawn(async move { serve_http(listener, tower::service_fn(respond), &serving).await });
    server
}

async fn call(service: &ServiceHandle) -> Result<String, String> {
    let request = Request::get("/").body(Body::empty()).unwrap();
    let response = service.send(request).await.map_err(|fault| fault.to_string())?;
    let zone = response.headers()["x-zone"].to_str().unwrap().to_owned();
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    body.map(|_| zone).map_err(|error| error.to_string())
}

/// Percentage of a zone's next calls that stay in the zone.
async fn percent_that_stays(answers: &Answers, zone: &'static str, calls: u64) -> f64 {
    let of = || {
        let answers = answers.lock().unwrap();
        let all: u64 = answers.iter().filter(|((from, _), _)| *from == zone).map(|(_, count)| count).sum();
        (answers.get(&(zone, zone.to_owned())).copied().unwrap_or_default(), all)
    };
    let before = of();
    until("calls go on", async || of().1 >= before.1 + calls).await;
    let now = of();
    (now.0 - before.0) as f64 / (now.1 - before.1) as f64 * 100.0
}

async fn divided(answers: &Answers) {
    until("each zone keeps the part that its power allows", async || {
        // Three standard deviations for 150 calls.
        (percent_that_stays(answers, "eu-a", 150).await - 70.0).abs() < 11.0
            && percent_that_stays(answers, "eu-b", 30).await > 99.0
    })
    .await;
}

/// Checks that `get tables` and `explain` show the same shares as `traffic status`.
async fn tables_show_zones(world: &World) {
    let shares = |zones: &Value| {
        let all = zones.as_array().unwrap().iter();
        let planned = all.filter(|zone| zone["sharePercent"].as_f64() > Some(0.0));
        let of = |zone: &Value| [&zone["from"], &zone["to"], &zone["sharePercent"]].map(Value::to_string);
        planned.map(of).collect::<Vec<_>>()
    };
    until("the table has what is planned", async || {
        let stored = world.cli(&["get", "tables", "shop/cart", "--json"]).await.json();
        let planned = shares(&status(world).await["regions"][0]["zones"]);
        !planned.is_empty() && shares(&stored[0]["zones"]) == planned
    })
    .await;
    let listed = world.cli(&["get", "tables", "shop/cart"]).await.ok();
    let row = |line: &str| line.starts_with("shop/cart") && line.contains("eu/eu-a") && line.contains("eu-b");
    assert!(listed.contains("CALLERS IN") && listed.lines().any(row), "{listed}");
    let explained = world.cli(&["explain", "shop/cart", "--region", "eu", "--zone", "eu-a"]).await.ok();
    assert!(explained.contains("; those that stay, of callers in zone eu-a: eu-a "), "{explained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_keeps_calls_up_to_its_capacity_during_agent_outage() {
    let _machine = beside_others().await;
    let mut world = World::start(YAML).await;
    let (first, second) = (serve(&world, "eu-a").await, serve(&world, "eu-b").await);
    let (answers, failed) = (Answers::default(), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for (zone, rate) in CALLS {
        let mesh = Mesh::builder().agent(world.agent_address()).client_id(zone).location(location(zone));
        let mesh = mesh.cache_dir(world.path("nothing")).connect().await.unwrap();
        let service = mesh.service("shop/cart").unwrap();
        let (answers, failed) = (Arc::clone(&answers), Arc::clone(&failed));
        tasks.spawn(async move {
            let mut due = interval(Duration::from_secs_f64(1.0 / rate));
            loop {
                due.tick().await;
                match call(&service).await {
                    Ok(to) => *answers.lock().unwrap().entry((zone, to)).or_default() += 1,
                    Err(_) => _ = failed.fetch_add(1, Relaxed),
                }
            }
        });
    }
    plans_after(&world, 0).await;
    divided(&answers).await;
    tables_show_zones(&world).await;
    let shown = status(&world).await;
    let crossing = |zones: &Value| {
        let zones = zones.as_array().unwrap().iter();
        let mut pair = zones.filter(|zone| zone["from"] == "eu-a" && zone["to"] == "eu-b");
        pair.next().and_then(|pair| pair["bytesPerSecond"].as_f64()).unwrap_or_default()
    };
    let bytes = crossing(&shown["regions"][0]["zones"]);
    assert!((5_000.0..40_000.0).contains(&bytes), "18 responses of {BODY} bytes a second: {shown}");
    let counted = world.control_metric(CROSSING).await;
    assert!((5_000.0..40_000.0).contains(&counted), "{counted}");

    // Without its agent the region sends no reports: the table stays, and no call fails.
    world.agent.kill().await;
    until("the region is not heard", async || {
        status(&world).await["regions"][0]["callersAgoMs"].as_u64().is_some_and(|ago| ago > 5_000)
    })
    .await;
    divided(&answers).await;
    let round = status(&world).await["round"].as_u64().unwrap();
    world.agent.restart();
    world.agent_is_up().await;
    plans_after(&world, round).await;
    divided(&answers).await;
    tasks.abort_all();
    assert_eq!(failed.load(Relaxed), 0);
    for server in [first, second] {
        server.shutdown().await;
    }
}
