//! CONNECT is refused unless a listener or a route allows it; it is then routed like any request.

use fairmesh_model::Protocol;
use tokio::process::Command;

use super::{Told, asked, asked_http2};
use crate::harness::{Proxy, World, beside_others, free_port, read_head, say};

/// One service that refuses a host, one that allows and limits tunnels for a host, and one without rules.
const POLICIES: &str = "
kind: Service
name: shop/one
---
kind: Policy
service: shop/one
routes:
  - name: admin
    match: {hosts: [admin.example]}
    fault: {abort: {share: 100%, status: 403}}
  - name: moved
    match: {hosts: [moved.example]}
    redirect: {host: one.shop}
  - name: partners
    match: {hosts: ['*.partner.example']}
---
kind: Service
name: shop/open
---
kind: Policy
service: shop/open
routes:
  - name: tunnels
    match: {methods: [connect]}
    limit: {calls: 2, per: 1h}
";

/// Status and text of the response to CONNECT, which must be equal over both HTTP versions.
async fn connects(to: &str, target: &str) -> String {
    let request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n");
    let told = asked(to, request.as_bytes()).await;
    let over_http2 = asked_http2(to, &[(":method", "CONNECT"), (":authority", target)]).await;
    assert_eq!(told[..4], over_http2[..4], "{target}: {told} {over_http2}");
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_method_is_refused_by_default() {
    let _machine = beside_others().await;
    let world = World::start(POLICIES).await;
    let _one = Told::start(&world, "shop/one", Protocol::Http1).await;
    let _open = Told::start(&world, "shop/open", Protocol::Http1).await;
    let proxy = Proxy::start(&world).await;
    for to in [&proxy.by_host, &proxy.for_one] {
        for target in ["one.shop:80", "other.shop:80", "example.com:443", "127.0.0.1:22"] {
            let told = connects(to, target).await;
            assert!(told.starts_with("405 ") && told.contains("+connect"), "{target}: {told}");
        }
        for target in ["one.shop", "one.shop:", "one.shop:0", "one.shop:80x", "one.shop:65536", "nonsense"] {
            let told = connects(to, target).await;
            assert!(told.starts_with("400 ") && told.contains("port"), "{target}: {told}");
        }
        for target in ["*", "/", "http://one.shop/", "http://one.shop:80"] {
            let request = format!("CONNECT {target} HTTP/1.1\r\nhost: one.shop:80\r\n\r\n");
            assert!(asked(to, request.as_bytes()).await.starts_with("400 "), "{target}");
        }
        let told = asked_http2(to, &[(":method", "CONNECT"), (":authority", "*")]).await;
        assert!(told.starts_with("400 "), "{told}");
        let mut program = say(to, "CONNECT one.shop:80 HTTP/1.1\r\nhost: one.shop:80\r\n\r\n").await;
        let head = read_head(&mut program).await;
        assert!(
            head.contains("\r\nallow: get, head, ") && !head.contains(", connect"),
            "RFC 9110 15.5.6: {head}"
        );
    }
    assert_eq!(proxy.metric("tunnels_total").await, 0.0);
    // A route that names the method allows CONNECT and is applied.
    let told = asked_http2(&proxy.by_host, &[(":method", "CONNECT"), (":authority", "open.shop:80")]).await;
    assert!(told.starts_with("200 "), "{told}");
    let told = asked(&proxy.by_host, b"CONNECT open.shop:80 HTTP/1.1\r\nhost: open.shop\r\n\r\n").await;
    assert!(told.starts_with("200 "), "{told}");
    let told = connects(&proxy.by_host, "open.shop:80").await;
    assert!(told.starts_with("429 "), "{told}");
    proxy.counts("tunnels_total", 2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_method_if_allowed_is_routed_like_any_request() {
    let _machine = beside_others().await;
    let world = World::start(POLICIES).await;
    let _one = Told::start(&world, "shop/one", Protocol::Http1).await;
    let [by_host, for_one] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let listen = format!("--listen {by_host}+connect --listen {for_one}=shop/one+connect");
    let proxy = Proxy::with(&world, &listen).await;
    for (to, target, status) in [
        (&for_one, "admin.example:80", "403 "),
        (&for_one, "Admin.Example.:443", "403 "),
        (&for_one, "moved.example:80", "302 "),
        // Not a host of a service.
        (&for_one, "example.com:443", "403 "),
        (&for_one, "two.shop:80", "403 "),
        (&for_one, "partner.example:80", "403 "),
        (&by_host, "admin.example:80", "403 "),
        (&by_host, "none.shop:80", "403 "),
        (&by_host, "127.0.0.1:22", "403 "),
        (&by_host, "nonsense", "400 "),
    ] {
        let told = connects(to, target).await;
        assert!(told.starts_with(status), "{target}: {told}");
    }
    assert_eq!(proxy.metric("tunnels_total").await, 0.0);
    for (to, target) in
        [(&for_one, "One.Shop.:99"), (&for_one, "a.partner.example:443"), (&by_host, "one.shop:99")]
    {
        let curl = Command::new("curl")
            .args(["-sS", "--max-time", "20", "--proxytunnel", "--proxy", to])
            .args(["-w", " %{http_connect} %{http_code}", &format!("http://{target}/a")])
            .kill_on_drop(true)
            .output();
        let output = curl.await.expect("this test needs curl");
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.starts_with("/a ") && told.ends_with(" 200 200"), "{target}: {told}");
    }
    proxy.counts("tunnels_total", 3.0).await;
}
