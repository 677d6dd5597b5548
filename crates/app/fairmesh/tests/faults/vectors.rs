//! The proxy, with real records and endpoints, picks endpoints for keyed calls as `vectors/` says.

use std::{collections::BTreeSet, net::SocketAddr};

use fairmesh_model::{Location, Protocol, Region, Zone};
use fairmesh_server::MeshServer;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::harness::{Proxy, World, beside_others, read_head, until};

/// Responds to requests without a body, for any endpoint.
pub(crate) async fn answer(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut head = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                head.push(byte);
                if head.ends_with(b"\r\n\r\n") {
                    head.clear();
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                }
            }
        });
    }
}

/// YAML documents of a fleet. Callers follow endpoints by region, so a shard map must name the region of each replica.
pub(crate) fn documents(fleet: &Value) -> String {
    let of = |kind: &str, mut document: Value| {
        document["kind"] = json!(kind);
        document.to_string()
    };
    let service = json!({"name": "shop/cart", "type": fleet["type"], "protocol": "http1"});
    let mut documents = vec![
        of("Topology", fleet["topology"].clone()),
        of("Service", service),
        of("Policy", fleet["policy"].clone()),
    ];
    let mut map = fleet["shardMap"].clone();
    for shard in map.get_mut("shards").and_then(Value::as_array_mut).into_iter().flatten() {
        for replica in shard["replicas"].as_array_mut().unwrap() {
            let endpoints = fleet["endpoints"]["endpoints"].as_array().unwrap();
            let endpoint = endpoints.iter().find(|endpoint| endpoint["instance"] == replica["instance"]);
            replica["region"] = endpoint.unwrap()["region"].clone();
        }
    }
    if let Some(map) = map.as_object_mut() {
        // The first version here.
        map.remove("version");
        documents.push(of("ShardMap", map.clone().into()));
    }
    documents.join("\n---\n")
}

/// Registers the fleet's endpoints, all at one address.
pub(crate) async fn register(world: &World, fleet: &Value, address: SocketAddr) -> Vec<MeshServer> {
    let mut servers = Vec::new();
    for endpoint in fleet["endpoints"]["endpoints"].as_array().unwrap() {
        let (instance, region) =
            (endpoint["instance"].as_str().unwrap(), endpoint["region"].as_str().unwrap());
        let zone = endpoint["zone"].as_str().map(|zone| Zone::new(zone).unwrap());
        let server = MeshServer::builder("shop/cart")
            .instance(instance)
            .address(address)
            .location(Location { zone, ..Location::in_region(Region::new(region).unwrap()) })
            .weight(endpoint["weight"].as_u64().unwrap().try_into().unwrap())
            .protocol(Protocol::Http1)
            .agent(world.agent_address());
        servers.push(server.start().await.unwrap());
        world.serves("shop/cart", instance).await;
        match endpoint["state"].as_str() {
            Some("serving") => {}
            Some("draining") => drop(world.cli(&["drain", "shop/cart", instance]).await.ok()),
            other => panic!("a server does not register as {other:?}"),
        }
    }
    servers
}

/// Instance that responds to a call, or the reason for the error.
pub(crate) async fn pick(proxy: &Proxy, call: &Value) -> String {
    let header = |name: &str, value: &Value| match value.as_str() {
        Some(value) => format!("x-fairmesh-{name}: {value}\r\n"),
        None => String::new(),
    };
    let class = call["class"].as_str().map_or_else(String::new, |class| format!("x-class: {class}\r\n"));
    let asked = header("key", &call["key"]) + &header("role", &call["role"]) + &class;
    let request = format!(
        "GET / HTTP/1.1\r\nhost: cart.shop\r\nx-fairmesh-explain: true\r\nconnection: close\r\n{asked}\r\n"
    );
    let mut stream = TcpStream::connect(&proxy.by_host).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    let told = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    match told("x-fairmesh-fault: ") {
        Some(fault) => fault,
        None => {
            told("x-fairmesh-decision: shop/cart; ").unwrap_or(head).split(' ').next().unwrap().to_owned()
        }
    }
}

/// Number of times that each call is made.
const ROUNDS: usize = 5;

/// Picks that the vector allows for any of its seeds, in the proxy's words.
fn expected(call: &Value) -> BTreeSet<String> {
    let word = |pick: &Value| match pick["refused"].as_str() {
        Some("NoReplica") => "no_replica".to_owned(),
        Some("KeyOutside") => "key_outside".to_owned(),
        Some("KeyMissing") => "key_missing".to_owned(),
        Some(other) => panic!("the proxy has no word for {other}"),
        None => pick.as_str().unwrap().to_owned(),
    };
    call["picked_by_seed_0_to_7"].as_array().unwrap().iter().map(word).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_sends_keyed_calls_to_endpoints_given_by_vectors() {
    let _machine = beside_others().await;
    let vectors: Value = serde_json::from_str(include_str!("../../../../../vectors/keys.json")).unwrap();
    for case in vectors["cases"].as_array().unwrap() {
        let world = World::start(&documents(&case["fleet"])).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(answer(listener));
        let _servers = register(&world, &case["fleet"], address).await;
        let proxy = Proxy::start(&world).await;
        let calls = case["calls"].as_array().unwrap();
        // Endpoints reach the proxy region by region. Until it has all of them, it picks among those it has; from then
        // on, every call must go where the vector says.
        until(&format!("{ROUNDS} rounds of {calls:?} go where they should"), async || {
            for call in calls.iter().cycle().take(ROUNDS * calls.len()) {
                if !expected(call).contains(&pick(&proxy, call).await) {
                    return false;
                }
            }
            true
        })
        .await;
        serving.abort();
    }
}
