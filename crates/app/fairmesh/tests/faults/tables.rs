//! Region tables: calls follow manually set shares, and the proxy and the lookaside decide as `vectors/tables.json`
//! says.

mod planned;

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_wire::lookaside::v1::PickRequest;
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
};
use tonic::Code;

use crate::{
    harness::{Proxy, World, beside_others, read_head, until},
    lookaside::Lookaside,
    vectors::{answer, documents, pick, register},
};

/// Number of calls for which shares are measured.
const CALLS: u32 = 1500;

/// Two regions with a server each.
fn fleet() -> Value {
    let endpoint = |instance: &str, region: &str| json!({"instance": instance, "address": "10.0.0.1:80", "region": region, "state": "serving", "weight": 1000});
    json!({
        "type": "replicated", "shardMap": null, "policy": {"service": "shop/cart"}, "topology": topology(false),
        "endpoints": {"service": "shop/cart", "endpoints": [endpoint("here", "eu"), endpoint("there", "us")]},
    })
}

fn topology(us_drains: bool) -> Value {
    json!({
        "kind": "Topology", "regions": [{"name": "eu"}, {"name": "us", "draining": us_drains}],
        "roundTrips": [{"between": ["eu", "us"], "rtt": "30ms"}],
    })
}

/// A policy with these shares for callers in `eu`.
fn policy(to: &Value, dropped: &str) -> String {
    let shares = json!([{"from": "eu", "to": to, "dropped": dropped}]);
    json!({"kind": "Policy", "service": "shop/cart", "traffic": {"shares": shares}}).to_string()
}

/// Percentage of calls by destination or error.
async fn percents(proxy: &Proxy) -> BTreeMap<String, f64> {
    let mut percents = BTreeMap::new();
    for _ in 0..CALLS {
        *percents.entry(pick(proxy, &Value::Null).await).or_default() += 100.0 / f64::from(CALLS);
    }
    percents
}

/// Waits until shares are as expected within 4 percentage points: more than three standard deviations.
async fn divided(proxy: &Proxy, expected: &[(&str, f64)]) {
    until(&format!("calls are divided as {expected:?}"), async || {
        let found = percents(proxy).await;
        let is_near = |(name, percent): &(&str, f64)| {
            (found.get(*name).copied().unwrap_or_default() - percent).abs() < 4.0
        };
        found.len() == expected.len() && expected.iter().all(is_near)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_follow_manual_region_shares_unless_region_is_drained() {
    let _machine = beside_others().await;
    let world = World::start(&documents(&fleet())).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(answer(listener));
    let _servers = register(&world, &fleet(), address).await;
    let proxy = Proxy::start(&world).await;
    divided(&proxy, &[("here", 100.0)]).await;

    world.apply(&policy(&json!({"eu": "70%", "us": "30%"}), "0%")).await.ok();
    divided(&proxy, &[("here", 70.0), ("there", 30.0)]).await;
    let listed = world.cli(&["get", "tables", "shop/cart", "--json"]).await.json();
    assert_eq!(listed[0]["toPercent"], json!({"eu": 70.0, "us": 30.0}), "{listed}");
    assert_eq!((&listed[0]["from"], &listed[0]["byHand"]), (&json!("eu"), &json!(true)));
    assert_eq!(listed[0]["state"], "in force");
    let told = world.cli(&["explain", "shop/cart", "--region", "eu", "--seed", "7"]).await.ok();
    assert!(told.contains("written by hand") && told.contains("eu 70%, us 30%"), "{told}");
    assert!(told.contains("draw ") && !told.contains("rings decide"), "{told}");
    let told = world.cli(&["explain", "shop/cart", "--region", "us", "--seed", "7"]).await.ok();
    assert!(!told.contains("written by hand"), "it is no table of callers in us: {told}");

    world.apply(&topology(true).to_string()).await.ok();
    divided(&proxy, &[("here", 100.0)]).await;
    world.apply(&topology(false).to_string()).await.ok();

    world.apply(&policy(&json!({"eu": "40%", "us": "40%"}), "20%")).await.ok();
    divided(&proxy, &[("here", 40.0), ("there", 40.0), ("dropped", 20.0)]).await;
    let all_dropped = policy(&json!({}), "100%");
    world.apply(&all_dropped).await.ok();
    divided(&proxy, &[("dropped", 100.0)]).await;
    let mut stream = TcpStream::connect(&proxy.by_host).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: cart.shop\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let refused = read_head(&mut stream).await;
    assert!(refused.starts_with("http/1.1 429 "), "{refused}");
    proxy.reaches("dropped_calls_total", f64::from(CALLS)).await;
    dropped_calls_are_not_revived(&world, &proxy).await;

    // In shadow mode, the table is shown but not applied.
    let shadow = all_dropped.replace(r#""traffic":{"#, r#""traffic":{"mode":"shadow","#);
    world.apply(&shadow).await.ok();
    divided(&proxy, &[("here", 100.0)]).await;
    let listed = world.cli(&["get", "tables", "shop/cart", "--json"]).await.json();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["state"]), (1, &json!("shadow")));
    world.apply("{kind: Policy, service: shop/cart}").await.ok();
    assert_eq!(world.cli(&["get", "tables", "shop/cart", "--json"]).await.json(), json!([]));
    serving.abort();
}

/// A dropped call fails without retries or hedging, although its policy has both: no server receives an attempt.
async fn dropped_calls_are_not_revived(world: &World, proxy: &Proxy) {
    let policy = json!({
        "kind": "Policy", "service": "shop/cart", "retries": {"attempts": 3, "budgetPercent": 100},
        "routes": [{"name": "all", "idempotent": true, "hedge": {"after": "1ms"}}],
        "traffic": {"shares": [{"from": "eu", "to": {}, "dropped": "100%"}]},
    });
    world.apply(&policy.to_string()).await.ok();
    until("the route is in use", async || {
        let told = world.cli(&["explain", "shop/cart", "--region", "eu"]).await.out;
        told.contains("'all'") && told.contains("dropped")
    })
    .await;
    let attempts = async || {
        let samples = proxy.samples().await;
        let of = |name: &str| {
            let all = samples.iter().filter(|((sample, _), _)| sample.ends_with(name));
            all.map(|(_, value)| value).sum::<f64>()
        };
        (of("retries_total"), of("hedges_total"))
    };
    let before = attempts().await;
    for content_type in ["text/plain", "application/grpc"] {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(&proxy.by_host).await.unwrap();
            let request = format!(
                "POST /shop.v1.Cart/Get HTTP/1.1\r\nhost: cart.shop\r\ncontent-type: {content_type}\r\n\
                 content-length: 0\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            let refused = read_head(&mut stream).await;
            let code = match content_type {
                "text/plain" => refused.starts_with("http/1.1 429 "),
                // RESOURCE_EXHAUSTED
                _ => refused.starts_with("http/1.1 200 ") && refused.contains("\r\ngrpc-status: 8\r\n"),
            };
            assert!(code && refused.contains("x-fairmesh-fault: dropped"), "{refused}");
        }
    }
    assert_eq!(attempts().await, before, "retries and hedges");
}

/// Outcomes that a vector allows, in the proxy's words.
fn expected(call: &Value) -> BTreeSet<String> {
    let word = |pick: &Value| match pick["refused"].as_str() {
        Some("Dropped") => "dropped".to_owned(),
        Some("KeyMissing") => "key_missing".to_owned(),
        Some("KeyOutside") => "key_outside".to_owned(),
        Some(other) => panic!("the proxy has no word for {other}"),
        None => pick.as_str().unwrap().to_owned(),
    };
    call["picked_by_seed_0_to_63"].as_array().unwrap().iter().map(word).collect()
}

/// Endpoint that the lookaside leases for a call, in the proxy's words.
async fn leased(lookaside: &Lookaside, call: &Value) -> String {
    let key = call["key"].as_str().map(|key| key.parse::<u128>().unwrap().to_be_bytes().to_vec().into());
    let key = key.unwrap_or_default();
    let request = PickRequest { service: "shop/cart".into(), key, endpoints: 1, ..PickRequest::default() };
    match lookaside.caller().await.pick(request).await {
        Ok(response) => response.into_inner().leases[0].instance.clone(),
        Err(status) => match status.code() {
            Code::ResourceExhausted => "dropped".into(),
            Code::InvalidArgument => "key_missing".into(),
            Code::OutOfRange => "key_outside".into(),
            _ => panic!("{status}"),
        },
    }
}

/// Cases of the vectors with manual tables, or those with planner tables.
fn cases(by_hand: bool) -> Vec<Value> {
    let vectors: Value = serde_json::from_str(include_str!("../../../../../vectors/tables.json")).unwrap();
    let is_by_hand = |fleet: &Value| fleet["confirmedSecondsAgo"].is_null() && fleet["planned"].is_null();
    let cases = vectors["cases"].as_array().unwrap().iter();
    cases.filter(|case| is_by_hand(&case["fleet"]) == by_hand).cloned().collect()
}

/// Fleet of a case. Routes give calls their class.
fn fleet_of(case: &Value) -> Value {
    let mut fleet = case["fleet"].clone();
    let bulk = json!({"name": "bulk", "match": {"headers": [{"name": "x-class", "exact": "bulk"}]}, "class": "bulk"});
    fleet["policy"]["routes"] = json!([bulk]);
    fleet
}

/// Checks that a case's calls reach all endpoints that the vector allows, and no others.
async fn decide(case: &Value, proxy: &Proxy, lookaside: Option<&Lookaside>) {
    for call in case["calls"].as_array().unwrap() {
        let wanted = expected(call);
        // A lookaside does not know the class of calls.
        let lookaside = lookaside.filter(|_| !call["class"].is_string());
        until(&format!("{call} goes to all of {wanted:?} and nowhere else"), async || {
            let (mut called, mut leases) = (BTreeSet::new(), BTreeSet::new());
            for _ in 0..150 {
                called.insert(pick(proxy, call).await);
                if let Some(lookaside) = lookaside {
                    leases.insert(leased(lookaside, call).await);
                }
            }
            called == wanted && (lookaside.is_none() || leases == wanted)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_and_lookaside_match_vectors_of_manual_region_tables() {
    let _machine = beside_others().await;
    for case in cases(true) {
        let fleet = fleet_of(&case);
        let world = World::start(&documents(&fleet)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(answer(listener));
        let _servers = register(&world, &fleet, address).await;
        let proxy = Proxy::start(&world).await;
        let lookaside = Lookaside::start(&world, "").await;
        decide(&case, &proxy, Some(&lookaside)).await;
        serving.abort();
    }
}
