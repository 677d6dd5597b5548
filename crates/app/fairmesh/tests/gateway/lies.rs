//! Pods and nodes that make false claims about hosts, addresses, pods and their own identity.

use fairmesh_model::ServiceName;
use fairmesh_test_support::eventually_async as until;
use fairmesh_wire::transport::ExpectedPeer;
use tokio::net::TcpStream;

use crate::mesh::{Mesh, VIRTUAL, dial, exchange, header, serve_pod};

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";

/// A GET request for a host.
fn get(host: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nhost: {host}\r\nx-fairmesh-caller: spiffe://prod/blue/web\r\nconnection: close\r\n\r\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_reaches_services_by_its_certificate_not_by_its_claims() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    let [red, blue] = [mesh.identity("red", "red/client").await, mesh.identity("blue", "blue/client").await];
    until("red reaches its web", async || mesh.call(&red, VIRTUAL, GET).await.contains("red/web for")).await;
    // The host names the service too. The server learns the caller from the certificate only.
    for host in ["web", "web.red", "WEB.red:80"] {
        let answer = mesh.call(&red, "10.96.9.9:80", &get(host)).await;
        assert!(answer.ends_with("red/web for spiffe://prod/red/client"), "{host}: {answer}");
    }
    // Hosts and virtual addresses of another tenant lead to no service and reveal nothing.
    for (destination, host) in
        [("10.96.9.9:80", "vault.blue"), ("10.96.9.9:80", "web.blue"), ("10.96.0.7:80", "vault.blue")]
    {
        let answer = mesh.call(&red, destination, &get(host)).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{destination} {host}: {answer}");
    }
    // At blue, the same virtual address is another service, without endpoints.
    let answer = mesh.call(&blue, VIRTUAL, GET).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("no_endpoints"), "{answer}");
    // The gateway enforces the service's rules for methods, tunnels and other protocols.
    let answer = mesh.call(&red, VIRTUAL, &GET.replace("GET", "DELETE")).await;
    assert!(
        answer.starts_with("HTTP/1.1 403 ") && answer.contains("x-fairmesh-fault: unauthorized"),
        "{answer}"
    );
    let answer = mesh.call(&red, VIRTUAL, "\x01\x02 no HTTP\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "bytes are not carried unread: {answer}");
    let web = mesh.identity("red", "red/web").await;
    let answer = mesh.call(&web, VIRTUAL, GET).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "red/web is in no rule: {answer}");
    // Bytes that are no HTTP are not forwarded, and CONNECT opens no tunnel.
    let answer = mesh.call(&red, "10.96.9.9:25", "\x01\x02 no HTTP\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let connect = "CONNECT web.red:80 HTTP/1.1\r\nhost: web.red:80\r\nconnection: close\r\n\r\n";
    let answer = mesh.call(&red, VIRTUAL, connect).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    // The caller header is set even if `connection` lists it.
    let request = GET.replace("connection: close", "connection: close, x-fairmesh-caller");
    let answer = mesh.call(&red, VIRTUAL, &request).await;
    assert!(answer.ends_with("red/web for spiffe://prod/red/client"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_another_tenant_or_role_is_refused() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    let red = mesh.identity("red", "red/client").await;
    until("red reaches its web", async || mesh.call(&red, VIRTUAL, GET).await.contains("red/web for")).await;
    // A tenant's agent issues identities of its own tenant only, and none of gateways.
    for path in ["blue/web", "fairmesh/gateway/false", "fairmesh/replica/false"] {
        let refused = mesh.identity("red", path).await;
        assert!(
            refused.lacks_certificate().is_some_and(|problem| problem.contains("may not have")),
            "{path}"
        );
    }
    // Processes of the mesh belong to no tenant.
    let proxy = mesh.identity("edge", "fairmesh/proxy/one").await;
    let answer = mesh.call(&proxy, VIRTUAL, GET).await;
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
    // One that leaves has claimed nothing.
    for _ in 0..3 {
        drop(TcpStream::connect(mesh.gateway).await.unwrap());
    }
    let left = async || mesh.metric("fairmesh_gateway_peers_left_total ").await >= 3;
    until("peers that left are counted", left).await;
    mesh.counts(false, "fairmesh_gateway_peers_refused_total", "1").await;
    // A node accepts only gateways: no pod of its own tenant and no proxy.
    let web = ServiceName::new("red/web").unwrap();
    for stranger in [&red, &proxy] {
        if let Ok(mut stream) = dial(stranger, mesh.node, ExpectedPeer::Service(&web)).await {
            let answer = exchange(&mut stream, &[header(mesh.pod), GET.into()].concat()).await;
            assert!(!answer.contains("red/web"), "{answer}");
        }
    }
    mesh.counts(true, "fairmesh_node_peers_refused_total", "2").await;
    // A gateway reaches only the pods of the listener, no other address behind the node.
    let gateway = mesh.identity("edge", "fairmesh/gateway/other").await;
    let mut stream = dial(&gateway, mesh.node, ExpectedPeer::Service(&web)).await.unwrap();
    let answer = exchange(&mut stream, &[header(mesh.pod), GET.into()].concat()).await;
    assert!(answer.ends_with("red/web for nobody"), "{answer}");
    let elsewhere = serve_pod().await;
    let mut stream = dial(&gateway, mesh.node, ExpectedPeer::Service(&web)).await.unwrap();
    let answer = exchange(&mut stream, &[header(elsewhere), GET.into()].concat()).await;
    assert!(!answer.contains("red/web"), "{answer}");
    mesh.counts(true, "fairmesh_node_headers_refused_total", "1").await;
}
