//! Programs find services by DNS name, and the proxy accepts these names as hosts.

use std::{net::SocketAddr, time::Duration};

use fairmesh_model::Protocol;
use rustix::process::Signal;
use serde_json::json;
use tokio::{io::AsyncReadExt as _, net::UdpSocket, time::timeout};

use crate::harness::{
    PATIENCE, Process, Program, Proxy, Spec, World, beside_others, free_port, read_head, say, until,
};

/// Address of all services in DNS answers.
const ADDRESS: [u8; 4] = [240, 0, 0, 1];
/// Response codes (RFC 1035, 4.1.1).
const NO_ERROR: u8 = 0;
const SERVER_FAILURE: u8 = 2;
const NAME_ERROR: u8 = 3;

struct Dns {
    process: Process,
    address: SocketAddr,
}

impl Dns {
    fn start(world: &World) -> Self {
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let args = format!("dns --agent {} --listen {address} --admin none", world.agent_address());
        let process = Process::start(Program::fairmesh(world.path("dns.log"), &args));
        Self { process, address }
    }

    /// Queries the A record of a name; returns the response code and whether the address is [`ADDRESS`].
    async fn ask(&self, name: &str) -> Option<(u8, bool)> {
        // Header: an id, recursion desired, one question.
        let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(label.len() as u8);
            query.extend(label.as_bytes());
        }
        // The root; type A, class IN.
        query.extend([0, 0, 1, 0, 1]);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket.send(&query).await.unwrap();
        let mut response = [0; 512];
        let length = timeout(PATIENCE, socket.recv(&mut response)).await.ok()?.ok()?;
        assert_eq!(response[..2], [0, 7]);
        Some((response[3] & 0xf, response[..length].ends_with(&ADDRESS)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_resolved_by_name_and_called_by_that_host() {
    let _machine = beside_others().await;
    let mut world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let dns = Dns::start(&world);
    until("the service has its name", async || dns.ask("one.shop.mesh").await == Some((NO_ERROR, true)))
        .await;
    assert_eq!(dns.ask("ONE.Shop.mesh").await, Some((NO_ERROR, true)));
    assert_eq!(dns.ask("two.shop.mesh").await, Some((NAME_ERROR, false)));
    world.apply("{kind: Service, name: shop/two, type: replicated, protocol: http1}").await.ok();
    until("a new service has one", async || dns.ask("two.shop.mesh").await == Some((NO_ERROR, true))).await;

    let proxy = Proxy::with(&world, "--dns-zone mesh").await;
    for (host, status) in
        [("one.shop.mesh", 200), ("One.shop.MESH.:80", 200), ("one.shop", 200), ("x.mesh", 404)]
    {
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let answer = read_head(&mut say(&proxy.by_host, request).await).await;
        assert!(answer.starts_with(&format!("http/1.1 {status} ")), "{host}: {answer}");
    }

    let without_zone = Proxy::with(&world, "").await;
    let request = "GET / HTTP/1.1\r\nhost: one.shop.mesh\r\nconnection: close\r\n\r\n".to_owned();
    let mut answer = String::new();
    say(&without_zone.by_host, request).await.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("--dns-zone mesh"), "{answer}");

    // The resolver follows records through the same agent as callers: a drain waits for it too.
    let drained = world.cli(&["drain", "shop/one", "one", "--deadline", "20s", "--json"]).await.json();
    assert_eq!((&drained["callersMoved"], &drained["behind"]), (&json!(true), &json!([])));

    world.agent.signal(Signal::KILL);
    world.agent.end().await;
    assert_eq!(dns.ask("one.shop.mesh").await, Some((NO_ERROR, true)), "as last known");
    let unknown = timeout(Duration::from_secs(10), dns.ask("a.unheard.mesh")).await.unwrap();
    assert_eq!(unknown, Some((SERVER_FAILURE, false)), "{}", dns.process.log());
}
