//! Unauthenticated peers that connect to the gateway and a node and stay silent.

use std::time::Duration;

use fairmesh_test_support::eventually_async as until;
use tokio::time::Instant;

use crate::mesh::{Mesh, Options, VIRTUAL, serve_pod, silent};

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
/// Upper bound of a call: far below the 10 s after which silent connections are closed.
const PROMPT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_peers_at_gateway_and_node_delay_no_call() {
    let options = Options {
        gateway: "--max-handshakes 32 --max-connections 64",
        node: "--max-connections 4",
        ..Options::default()
    };
    let Some(mesh) = Mesh::start_with(serve_pod().await, options).await else { return };
    let red = mesh.identity("red", "red/client").await;
    until("red reaches its web", async || mesh.call(&red, VIRTUAL, GET).await.contains("red/web for")).await;
    // Connections of authenticated callers do not count towards the limit for unknown ones.
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(mesh.open(&red, VIRTUAL).await.unwrap());
    }
    let began = Instant::now();
    let _at_gateway = silent(mesh.gateway, 40).await;
    let _at_node = silent(mesh.node, 40).await;
    for _ in 0..10 {
        let answer = mesh.call(&red, VIRTUAL, GET).await;
        assert!(answer.contains("red/web for"), "{answer}");
    }
    assert!(began.elapsed() < PROMPT, "calls wait for silent connections: {:?}", began.elapsed());
    let refused = mesh.metric("fairmesh_gateway_handshakes_refused_total ").await;
    assert!((24..40).contains(&refused), "half of 32 may be of one address: {refused}");
    assert_eq!(mesh.metric("fairmesh_gateway_connections_refused_total ").await, 0);
}
