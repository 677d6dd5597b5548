//! A proxy for many services: which services it follows, and for how long.

use std::process::Command;

use fairmesh_model::Protocol;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::harness::{Proxy, Spec, World, beside_others, is_soak};

/// A connection for many sequential requests.
struct Calling(TcpStream);

impl Calling {
    async fn to(address: &str) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Status and body of the response.
    async fn call(&mut self, host: &str) -> (u16, String) {
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
        let (mut read, mut head) = (Vec::new(), None);
        loop {
            if head.is_none() {
                head = read.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
            }
            if let Some(at) = head {
                let text = String::from_utf8_lossy(&read[..at]).to_lowercase();
                let length = text.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
                if read.len() >= at + length.trim().parse::<usize>().unwrap() {
                    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
                    return (status, String::from_utf8_lossy(&read[at..]).into_owned());
                }
            }
            assert!(self.0.read_buf(&mut read).await.unwrap() > 0, "{}", String::from_utf8_lossy(&read));
        }
    }

    async fn status(&mut self, host: &str) -> u16 {
        self.call(host).await.0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_service_is_dropped_and_fetched_again_at_next_call() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let _two = Spec::new("shop/two", "two", Protocol::Http1).here(&world).await;
    let proxy = Proxy::with(&world, "--service-idle-timeout 400ms --idle-timeout 60s").await;
    // An open connection does not keep a service.
    let mut calling = Calling::to(&proxy.by_host).await;
    assert_eq!(calling.status("two.shop").await, 200);
    proxy.counts("idle_services_evicted_total", 1.0).await;
    proxy.counts("services", 1.0).await;
    let metrics = proxy.page("/metrics").await;
    assert!(!metrics.contains("shop/two"), "{metrics}");
    let kept = r#"fairmesh_proxy_responses_total{service="(other)",class="2xx","#;
    let kept = metrics.lines().filter(|line| line.starts_with(kept)).filter(|line| line.ends_with(" 1"));
    assert_eq!(kept.count(), 1, "what was counted of it is kept: {metrics}");
    assert!(metrics.contains(r#"service="shop/one""#), "a listener of its own keeps a service: {metrics}");
    assert_eq!(calling.status("two.shop").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_service_names_evict_no_service_and_limit_error_has_hint() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut servers = Vec::new();
    for name in ["one", "two", "three", "four"] {
        servers.push(Spec::new(&format!("shop/{name}"), name, Protocol::Http1).here(&world).await);
    }
    // One of the three services has a listener of its own.
    let proxy = Proxy::with(&world, "--max-services 3").await;
    let mut calling = Calling::to(&proxy.by_host).await;
    assert_eq!(calling.status("two.shop").await, 200);
    // More undeclared names than a resolver remembers.
    for number in 0..1_100 {
        assert_eq!(calling.status(&format!("made-up-{number}.shop")).await, 404);
    }
    assert_eq!(proxy.metric("services").await, 2.0);
    assert_eq!(calling.status("three.shop").await, 200);
    let (status, words) = calling.call("four.shop").await;
    assert!(status == 503 && words.contains("--max-services"), "{status}: {words}");
    assert_eq!(proxy.metric("services_refused_total").await, 1.0);
    assert_eq!(calling.status("two.shop").await, 200);
    drop(servers);
}

/// As in the benchmark, with control plane, agent and proxy as processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_services_respond_through_one_agent_and_proxy() {
    let services = if is_soak() { 2_000 } else { 1_000 };
    let _machine = beside_others().await;
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("routers.json");
    let bench = std::path::Path::new(env!("CARGO_BIN_EXE_fairmesh")).with_file_name("fairmesh-bench");
    let mut command = Command::new(bench);
    command.args(["routers", "--services", &services.to_string(), "--json"]).arg(&json);
    if !is_soak() {
        // Fewer changes of policies, which tell nothing of failed calls.
        command.arg("--quick");
    }
    let ran = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let figures: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(figures["figures"][format!("failed_{services}")], 0.0, "{said}");
}
