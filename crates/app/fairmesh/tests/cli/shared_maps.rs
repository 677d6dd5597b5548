//! The socket through which an agent shares the tables of shard maps with local programs.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_shared_memory::DescriptorChannel;
use fairmesh_wire::{
    handshake,
    transport::{Address, Transport},
    v1::{HelloRequest, MapName, MapRequest, MapResponse, map_request, map_response::Kind},
};
use prost::Message as _;
use tokio::time::timeout;

use super::{
    identities::{agent, domain, has_certificate, runtime, token},
    support::wait_until,
};

const SHARDED: &str = "\
kind: Topology
regions: [{name: eu}]
---
kind: Authorization
default: deny
---
kind: Service
name: shop/cart
type: sharded
---
kind: ShardMap
service: shop/cart
interval: {start: 0, end: 1000}
shards: [{id: 0, start: 0, replicas: [{instance: cart-0, region: eu, role: primary}]}]
---
kind: Service
name: bank/vault
type: sharded
---
kind: ShardMap
service: bank/vault
interval: {start: 0, end: 1000}
shards: [{id: 0, start: 0, replicas: [{instance: vault-0, region: eu, role: primary}]}]
";

/// Follows the shard maps of these services as a program would. Returns the version or error of each, and the number of
/// tables received.
async fn follow(agent: &str, services: &[&str]) -> (BTreeMap<String, Result<u64, String>>, usize) {
    let socket = agent.parse::<Address>().unwrap().maps().unwrap();
    let stream = Transport::default().dial(&socket).await.unwrap().into_unix().unwrap().0;
    let mut channel = DescriptorChannel::new(stream);
    let send = async |channel: &DescriptorChannel, kind| {
        channel.send(&MapRequest { kind: Some(kind) }.encode_to_vec(), &[]).await.unwrap();
    };
    let version = *handshake::PROTOCOL.end();
    let hello = HelloRequest { oldest_version: version, newest_version: version, ..Default::default() };
    send(&channel, map_request::Kind::Hello(hello)).await;
    for service in services {
        let name = MapName { service: service.to_string(), region: String::new() };
        send(&channel, map_request::Kind::Follow(name)).await;
    }
    let (mut found, mut tables) = (BTreeMap::new(), 0);
    while found.len() < services.len() {
        let (frame, descriptors) = channel.receive().await.unwrap().expect("the session goes on");
        tables += descriptors.len();
        match MapResponse::decode(frame).unwrap().kind {
            Some(Kind::Map(map)) => found.insert(map.name.unwrap().service, Ok(map.version)),
            Some(Kind::Failure(failure)) => found.insert(failure.name.unwrap().service, Err(failure.reason)),
            _ => None,
        };
    }
    (found, tables)
}

#[test]
fn agent_shares_no_shard_map_of_forbidden_tenant() {
    let (mesh, tcp) = domain();
    mesh.apply(SHARDED).ok();
    let [shop, bank] = [("web-1", "shop"), ("web-2", "bank")].map(|(name, tenant)| {
        let running = agent(&mesh, name, &tcp, Some(&token(&mesh, &[name, "--tenant", tenant])));
        wait_until("the agent joins", || has_certificate(&mesh, name));
        running
    });
    for ((_, address), own, other) in [(&shop, "shop/cart", "bank/vault"), (&bank, "bank/vault", "shop/cart")]
    {
        // The other tenant's map first, and again once the tenant's own map has arrived.
        for services in [[other, own], [own, other]] {
            let following = async { timeout(Duration::from_secs(30), follow(address, &services)).await };
            let (found, tables) = runtime().block_on(following).expect("both are answered");
            assert_eq!(found[own], Ok(1), "{found:?}");
            let refusal = found[other].as_ref().unwrap_err();
            assert!(refusal.contains("there is nothing at"), "{refusal}");
            let (alone, of_own) = runtime().block_on(follow(address, &[own]));
            assert_eq!((alone.len(), tables), (1, of_own), "all tables are of the own map");
        }
    }
}

#[test]
fn agent_stops_sharing_shard_map_after_losing_permission() {
    let (mut mesh, tcp) = domain();
    mesh.apply(SHARDED).ok();
    mesh.apply("kind: Authorization\ndefault: allow\n").ok();
    let (_agent, agent) = agent(&mesh, "web-1", &tcp, Some(&token(&mesh, &["web-1", "--tenant", "shop"])));
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let vault = || {
        let following = async { timeout(Duration::from_secs(30), follow(&agent, &["bank/vault"])).await };
        let (mut found, tables) = runtime().block_on(following).expect("it is answered");
        (found.remove("bank/vault").unwrap(), tables)
    };
    wait_until("the map is given out", || vault().0 == Ok(1));
    mesh.apply("kind: Authorization\ndefault: deny\n").ok();
    // Each request comes while the agent still keeps the map of the last one.
    wait_until("it is not given out any more", || vault().0.is_err());
    for _ in 0..3 {
        let (found, tables) = vault();
        assert!(found.unwrap_err().contains("there is nothing at"));
        assert_eq!(tables, 0);
    }

    mesh.apply("kind: Authorization\ndefault: allow\n").ok();
    // Refused subscriptions are repeated over the next connection.
    mesh.stop_control("TERM");
    mesh.start_control();
    wait_until("it is given out again", || vault().0 == Ok(1));
}
