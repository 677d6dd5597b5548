//! Proxies registered as endpoints of services that they themselves forward to.

use std::net::Ipv4Addr;

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

use crate::harness::{Proxy, World, beside_others, free_port, read_head, read_to_end, say};

/// Registers this local address as an endpoint.
async fn registered(
    world: &World,
    (service, instance): (&str, &str),
    port: u16,
    protocol: Protocol,
) -> MeshServer {
    let server = MeshServer::builder(service).instance(instance).address((Ipv4Addr::LOCALHOST, port).into());
    let server = server.protocol(protocol).agent(world.agent_address()).start().await.unwrap();
    world.serves(service, instance).await;
    server
}

fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Sum of a metric over both proxies.
async fn sum(proxies: [&Proxy; 2], metric: &str) -> f64 {
    proxies[0].metric(metric).await + proxies[1].metric(metric).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_forwarded_in_loop_by_two_proxies_is_refused() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let (one, two) = (Proxy::start(&world).await, Proxy::start(&world).await);
    let mut servers = Vec::new();
    for (service, protocol) in [("shop/ring", Protocol::Http1), ("shop/calls", Protocol::Grpc)] {
        for (instance, proxy) in [("one", &one), ("two", &two)] {
            servers.push(registered(&world, (service, instance), port_of(&proxy.by_host), protocol).await);
        }
    }
    // One request is forwarded unparsed, the other is parsed, since its body is chunked.
    let plain = "GET / HTTP/1.1\r\nhost: ring.shop\r\n\r\n";
    let chunked =
        "POST / HTTP/1.1\r\nhost: ring.shop\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    for (looped, request) in [(1.0, plain), (2.0, chunked)] {
        let mut program = say(&one.by_host, request).await;
        let response = read_head(&mut program).await;
        assert!(response.starts_with("http/1.1 508 "), "{response}");
        assert!(response.contains("\r\nx-fairmesh-fault: loop\r\n"), "{response}");
        assert_eq!(sum([&one, &two], "loops_total").await, looped);
    }
    // Over HTTP/2 on every connection between the proxies.
    let request = Request::post(format!("http://{}/Cart/Get", one.by_host));
    let request = request.header("host", "calls.shop").header("content-type", "application/grpc");
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let response = client.request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["grpc-status"]),
        (StatusCode::OK, &"9".parse().unwrap())
    );
    assert_eq!(sum([&one, &two], "loops_total").await, 3.0);
    let opened = sum([&one, &two], "upstream_connections_opened_total").await;
    assert!(opened < 100.0, "{opened} connections for three requests");
    drop(servers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_makes_no_connection_to_its_own_listeners() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let [exact, any] = [(); 2].map(|()| free_port());
    let tunnels = format!("--listen tcp:127.0.0.1:{exact}=shop/exact --listen tcp:0.0.0.0:{any}=shop/any");
    let proxy = Proxy::with(&world, &tunnels).await;
    let own = port_of(&proxy.by_host);
    let mut servers = Vec::new();
    for (service, port) in [("shop/own", own), ("shop/exact", exact), ("shop/any", any)] {
        servers.push(registered(&world, (service, "proxy"), port, Protocol::Http1).await);
    }
    let mut program = say(&proxy.by_host, "GET / HTTP/1.1\r\nhost: own.shop\r\n\r\n").await;
    let response = read_head(&mut program).await;
    assert!(response.starts_with("http/1.1 503 "), "{response}");
    assert!(response.contains("\r\nx-fairmesh-fault: unreachable\r\n"), "{response}");
    for port in [exact, any] {
        let mut program = say(&format!("127.0.0.1:{port}"), "hello").await;
        assert!(read_to_end(&mut program).await.is_empty());
    }
    assert_eq!(proxy.metric("upstream_connections_opened_total").await, 0.0);
    drop((program, servers));
}
