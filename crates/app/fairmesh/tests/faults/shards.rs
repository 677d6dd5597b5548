//! Shards move while calls run, and a caller that has not learned of a move.

use std::net::SocketAddr;

use fairmesh_model::Protocol;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::harness::{Caller, Kind, Load, Local, Spec, World, beside_others, until};

/// Four shards of 250 keys; `{}` is replaced by the holder of the third.
const YAML: &str = "\
{kind: Service, name: shop/cart, type: sharded, protocol: grpc}
---
kind: ShardMap
service: shop/cart
interval: {start: 0, end: 1000}
shards:
  - {id: 0, start: 0, replicas: [{instance: cart-0, region: eu, role: primary}]}
  - {id: 1, start: 250, replicas: [{instance: cart-0, region: eu, role: primary}]}
  - {id: 2, start: 500, replicas: [{instance: THIRD, region: eu, role: primary}]}
  - {id: 3, start: 750, replicas: [{instance: cart-1, region: eu, role: primary}]}
";

struct Carts {
    world: World,
    servers: [Local; 2],
}

impl Carts {
    async fn start() -> Self {
        let world = World::start(&YAML.replace("THIRD", "cart-1")).await;
        let spec = |name| Spec { sharded: true, ..Spec::new("shop/cart", name, Protocol::Grpc) };
        let servers = [spec("cart-0").here(&world).await, spec("cart-1").here(&world).await];
        for name in ["cart-0", "cart-1"] {
            world.serves("shop/cart", name).await;
        }
        Self { world, servers }
    }

    /// Map version with which a server refuses a key in a direct call; `None` if the server accepts the key.
    async fn refuses(&self, server: usize, key: u32) -> Option<u64> {
        let answer = ask(self.servers[server].address, key).await;
        if answer.starts_with("HTTP/1.1 200 ") {
            return None;
        }
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        let version = answer.lines().find_map(|line| line.strip_prefix("fairmesh-wrong-shard: "));
        Some(version.unwrap_or_else(|| panic!("{answer}")).parse().unwrap())
    }
}

async fn ask(address: SocketAddr, key: u32) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET / HTTP/1.1\r\nhost: cart\r\nx-fairmesh-key: {key}\r\nx-fairmesh-role: primary\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn former_shard_owner_refuses_calls_after_shard_move() {
    let _machine = beside_others().await;
    let carts = Carts::start().await;
    let mesh = carts.world.mesh().await;
    let service = mesh.service("shop/cart").unwrap().role("primary").unwrap();
    let callers = Load::of(&service, &[(Kind::Get, 1), (Kind::Post, 2), (Kind::Grpc, 2)]);
    let load = Load::start(callers.into_iter().map(|caller| Caller { keys: Some(1000), ..caller }));
    load.reaches("cart-0").await;
    load.reaches("cart-1").await;
    assert_eq!((carts.refuses(0, 5).await, carts.refuses(1, 5).await.is_some()), (None, true));

    // Moves the shard there, back, and there again.
    for (from, to) in [("cart-0", "cart-1"), ("cart-1", "cart-0"), ("cart-0", "cart-1")] {
        let step = ["shards", "move", "shop/cart", "0", "--from", from, "--to", to, "--wait"];
        carts.world.cli(&step).await.ok();
        load.goes_on(100).await;
    }
    let map = carts.world.cli(&["shards", "get", "shop/cart", "--json"]).await.json();
    let version = map[0]["version"].as_u64().unwrap();
    until("the old owner refuses", async || carts.refuses(0, 5).await == Some(version)).await;
    assert_eq!(carts.refuses(1, 5).await, None);
    assert_eq!(carts.refuses(0, 255).await, None, "the others stay");
    load.stop_unharmed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_shard_response_updates_outdated_caller() {
    let _machine = beside_others().await;
    let carts = Carts::start().await;
    let (agent, address) = carts.world.another_agent("frozen").await;
    let stale = carts.world.mesh_of(address).await;
    let service = stale.service("shop/cart").unwrap().key(600).role("primary").unwrap();
    for (kind, before, after) in [(Kind::Post, 1, 0), (Kind::Grpc, 0, 1)] {
        let caller = Caller::new(&service, kind);
        assert_eq!(caller.call(0).await.unwrap(), format!("cart-{before}"));
        agent.signal(Signal::STOP);
        carts.world.apply(&YAML.replace("THIRD", &format!("cart-{after}"))).await.ok();
        until("the old owner refuses", async || carts.refuses(before, 600).await.is_some()).await;

        let refused = stale.stats().wrong_shard;
        let call = tokio::spawn(async move { caller.call(1).await });
        until("the caller is refused", async || stale.stats().wrong_shard > refused).await;
        agent.signal(Signal::CONT);
        assert_eq!(call.await.unwrap().unwrap(), format!("cart-{after}"));
    }
    assert_eq!(stale.stats().faults, 0);
}
