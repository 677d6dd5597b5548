//! A program that knows nothing of Fairmesh is an endpoint of a service, behind an inbound proxy.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use fairmesh_model::{EndpointState, Protocol};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::harness::{
    Kind, Load, Process, Program as Started, Proxy, Spec, World, beside_others, free_port, read_head, say,
    until,
};

/// Load report in a program's response.
const LOAD: &str = "TEXT named_metrics.queue=30,application_utilization=0.2";

/// A plain HTTP/1.1 server.
struct Plain {
    address: SocketAddr,
    under_way: Arc<AtomicUsize>,
    /// Calls of `/slow` wait for this notification.
    go_on: Arc<Notify>,
}

impl Plain {
    async fn start(instance: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (under_way, go_on) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
        let this = Self { address, under_way: Arc::clone(&under_way), go_on: Arc::clone(&go_on) };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (under_way, go_on) = (Arc::clone(&under_way), Arc::clone(&go_on));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (under_way, go_on) = (Arc::clone(&under_way), Arc::clone(&go_on));
                    async move {
                        under_way.fetch_add(1, Relaxed);
                        if request.uri().path() == "/slow" {
                            go_on.notified().await;
                        }
                        under_way.fetch_sub(1, Relaxed);
                        let host = request.headers().get("host").cloned();
                        let mut answer = Response::new(String::from("hello"));
                        answer.headers_mut().insert("x-instance", instance.parse().unwrap());
                        answer.headers_mut().insert("endpoint-load-metrics", LOAD.parse().unwrap());
                        host.map(|host| answer.headers_mut().insert("x-host", host));
                        Ok::<_, Infallible>(answer)
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        this
    }
}

/// Starts a proxy in front of a program; returns the proxy and its address for callers.
async fn in_front(
    world: &World,
    program: &Plain,
    service: &str,
    instance: &str,
    more: &str,
) -> (Process, String) {
    let [address, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = format!(
        "proxy --agent {} --listen {listen} --admin none --inbound {service}@{address}={} --inbound-instance {instance}{more}",
        world.agent_address(),
        program.address
    );
    let process = Process::start(Started::fairmesh(world.path(&format!("{instance}.log")), &args));
    world.serves(service, instance).await;
    (process, address)
}

/// Raw response, over a separate connection.
async fn raw(to: &str, path: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n{header}content-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_reports_load_and_drains_program_without_failures() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let plain = Plain::start("plain").await;
    let (mut proxy, address) = in_front(&world, &plain, "shop/one", "plain", "").await;
    let answer = raw(&address, "/", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
    assert!(answer.contains(&format!("endpoint-load-metrics: {LOAD},")), "{answer}");
    assert!(answer.contains("named_metrics.concurrent_requests=0"), "{answer}");
    assert!(answer.contains("x-host: shop.example"), "{answer}");

    let _stays = Spec::new("shop/one", "stays", Protocol::Http1).here(&world).await;
    let mesh = world.mesh().await;
    let load = Load::start(Load::of(&mesh.service("shop/one").unwrap(), &[(Kind::Get, 2), (Kind::Post, 3)]));
    load.reaches("plain").await;
    load.reaches("stays").await;
    proxy.signal(Signal::TERM);
    let ended = proxy.end().await;
    assert!(ended.success(), "{ended}: {}", proxy.log());
    assert!(world.endpoint("shop/one", "plain").await.is_none(), "it is out of the registry");
    load.goes_on(50).await;
    load.stop_unharmed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_replaced_under_load_fails_no_call() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let plain = Plain::start("plain").await;
    let [address, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let (agent, socket) = (world.agent_address(), world.path("proxy.sock"));
    let args = format!(
        "proxy --agent {agent} --handover {} --listen {listen} --admin none --drain-deadline 10s \
         --inbound shop/one@{address}={} --inbound-instance plain",
        socket.display(),
        plain.address
    );
    let start = |name: &str| Process::start(Started::fairmesh(world.path(name), &args));
    let process = async || {
        let endpoint = world.endpoint("shop/one", "plain").await.unwrap();
        (endpoint.state, endpoint.incarnation())
    };
    let mut first = start("first.log");
    world.serves("shop/one", "plain").await;
    let before = process().await;
    let mesh = world.mesh().await;
    // POSTs are never retried, and there is no other endpoint.
    let load = Load::start(Load::of(&mesh.service("shop/one").unwrap(), &[(Kind::Get, 2), (Kind::Post, 3)]));
    load.reaches("plain").await;
    // Another service at the same address would get the calls of the first one.
    let other = args.replace("shop/one@", "shop/two@");
    let mut refused = Process::start(Started::fairmesh(world.path("refused.log"), &other));
    assert!(!refused.end().await.success(), "{}", refused.log());
    for names in ["shop/one", "shop/two"].map(|service| format!("--inbound {service}@{address}")) {
        assert!(refused.log().contains(&names), "{}", refused.log());
    }
    let mut second = start("second.log");
    let ended = first.end().await;
    assert!(ended.success(), "{ended}: {}", first.log());
    load.goes_on(200).await;
    load.stop_unharmed().await;
    let after = process().await;
    assert_eq!((before.0, after.0), (EndpointState::Serving, EndpointState::Serving));
    assert!(before.1 < after.1, "the second has registered it");
    second.signal(Signal::TERM);
    let ended = second.end().await;
    assert!(ended.success(), "{ended}: {}", second.log());
    assert!(world.endpoint("shop/one", "plain").await.is_none(), "it is out of the registry");
}

/// A proxy in front of a program whose connections the test handles itself.
async fn in_front_of_raw(world: &World) -> (Process, TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let program =
        Plain { address: listener.local_addr().unwrap(), under_way: Arc::default(), go_on: Arc::default() };
    let (process, address) = in_front(world, &program, "shop/one", "plain", "").await;
    (process, listener, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_retries_get_after_program_closed_its_connection() {
    let _machine = beside_others().await;
    let world = World::start("{kind: Service, name: shop/one, type: replicated, protocol: http1}").await;
    let (_inbound, listener, _) = in_front_of_raw(&world).await;
    let sidecar = Proxy::start(&world).await;
    let mut caller = say(&sidecar.for_one, "GET /tea HTTP/1.1\r\nhost: one.shop\r\n\r\n").await;
    for response in ["", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea"] {
        let (mut program, _) = listener.accept().await.unwrap();
        let head = read_head(&mut program).await;
        assert!(head.starts_with("get /tea "), "{head}");
        program.write_all(response.as_bytes()).await.unwrap();
    }
    let answer = read_head(&mut caller).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_refuses_bodies_with_unknown_codings() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let (_inbound, listener, address) = in_front_of_raw(&world).await;
    for codings in ["gzip, chunked", "chunked\r\ntransfer-encoding: chunked"] {
        let request = format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: {codings}\r\n\r\n0\r\n\r\n");
        let answer = read_head(&mut say(&address, request).await).await;
        assert!(answer.starts_with("http/1.1 501 "), "{codings}: {answer}");
    }
    let accepted = tokio::time::timeout(std::time::Duration::from_millis(1), listener.accept()).await;
    assert!(accepted.is_err(), "nothing reaches the program");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planner_uses_load_metric_from_program_responses() {
    let _machine = beside_others().await;
    let yaml = "{kind: Service, name: shop/one, type: replicated, protocol: http1}\n---\n\
        {kind: Topology, regions: [{name: eu}]}\n---\n\
        kind: Policy\nservice: shop/one\ntraffic: {planner: rings, load: {metric: queue, fullScale: 120}}\n";
    let world = World::start(yaml).await;
    let plain = Plain::start("plain").await;
    let (_proxy, _) = in_front(&world, &plain, "shop/one", "plain", "").await;
    let mesh = world.mesh().await;
    let load = Load::start(Load::of(&mesh.service("shop/one").unwrap(), &[(Kind::Get, 2)]));
    let status = async || world.cli(&["traffic", "status", "shop/one", "--json"]).await.json()[0].clone();
    let has_load = |shown: &Value, load: f64| {
        shown["regions"][0]["load"].as_f64().is_some_and(|shown| (shown - load).abs() < 0.001)
    };
    until("the region is planned with its load", async || {
        let shown = status().await;
        shown["refusal"].is_null() && shown["round"].as_u64() > Some(0) && has_load(&shown, 0.25)
    })
    .await;
    let apply = async |metric: &str| {
        let traffic = format!("{{planner: rings, load: {{metric: {metric}, fullScale: 1}}}}");
        world.apply(&format!("{{kind: Policy, service: shop/one, traffic: {traffic}}}")).await.ok();
    };
    apply("application_utilization").await;
    until("the load is that of another one", async || has_load(&status().await, 0.2)).await;
    apply("nosuch").await;
    until("no server reports it", async || {
        status().await["refusal"].as_str().is_some_and(|why| why.contains("the metric 'nosuch'"))
    })
    .await;
    load.stop_unharmed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_refuses_overload_and_keys_of_other_servers() {
    let _machine = beside_others().await;
    let yaml = "{kind: Service, name: shop/cart, type: sharded}\n---\n\
        {kind: ShardMap, service: shop/cart, interval: {start: 0, end: 20}, shards: [\
        {id: 0, start: 0, replicas: [{instance: plain, region: eu, role: primary}]}, \
        {id: 1, start: 10, replicas: [{instance: other, region: eu, role: primary}]}]}";
    let world = World::start(yaml).await;
    let plain = Plain::start("plain").await;
    let (_proxy, address) = in_front(&world, &plain, "shop/cart", "plain", " --inbound-requests 1").await;
    let asked = async |key: u32| raw(&address, "/", &format!("x-fairmesh-key: {key}\r\n")).await;
    until("it knows what it holds", async || asked(13).await.starts_with("HTTP/1.1 421")).await;
    assert!(asked(3).await.starts_with("HTTP/1.1 200"), "its own");

    let slow = tokio::spawn({
        let address = address.clone();
        async move { raw(&address, "/slow", "").await }
    });
    until("one is under way", async || plain.under_way.load(Relaxed) == 1).await;
    let refused = asked(3).await;
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("x-fairmesh-fault: overloaded"),
        "{refused}"
    );
    plain.go_on.notify_one();
    assert!(slow.await.unwrap().starts_with("HTTP/1.1 200"));
    until("there is room again", async || asked(3).await.starts_with("HTTP/1.1 200")).await;
    let late = raw(&address, "/slow", "x-fairmesh-deadline: 200\r\n").await;
    assert!(late.starts_with("HTTP/1.1 504") && late.contains("x-fairmesh-fault: deadline"), "{late}");
    until("its place is free", async || asked(3).await.starts_with("HTTP/1.1 200")).await;

    let gone = Plain { address: format!("127.0.0.1:{}", free_port()).parse().unwrap(), ..plain };
    let (_proxy, address) = in_front(&world, &gone, "shop/two", "gone", "").await;
    let refused = raw(&address, "/", "").await;
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("x-fairmesh-fault: unreachable"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_registers_nothing_when_address_is_in_use() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let program = Plain::start("plain").await;
    let in_use = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = in_use.local_addr().unwrap();
    let free = || format!("127.0.0.1:{}", free_port());
    for (option, listen, admin) in
        [("--listen", in_use.to_string(), "none".to_owned()), ("--admin", free(), in_use.to_string())]
    {
        let args = format!(
            "proxy --agent {} --listen {listen} --admin {admin} --inbound shop/one@{}={} --inbound-instance early",
            world.agent_address(),
            free(),
            program.address
        );
        let ended = std::process::Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(args.split(' '))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && told.contains("cannot listen on"), "{option}: {told}");
        let endpoint = world.endpoint("shop/one", "early").await;
        assert_eq!(endpoint, None, "{option}: its callers would get 'connection refused'");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_without_listeners_serves_its_program() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let program = Plain::start("plain").await;
    let address = format!("127.0.0.1:{}", free_port());
    let args = format!(
        "proxy --agent {} --listen none --admin none --inbound shop/one@{address}={} --inbound-instance alone",
        world.agent_address(),
        program.address
    );
    let _proxy = Process::start(Started::fairmesh(world.path("alone.log"), &args));
    world.serves("shop/one", "alone").await;
    let answer = raw(&address, "/", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Starts a hyper server, whose URIs cannot contain some bytes that clients send; returns its address.
async fn strict_program() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let respond = service_fn(async |_| Ok::<_, Infallible>(Response::new("hello".to_owned())));
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                // The connection ends with the client.
                let _ = server.serve_connection(TokioIo::new(stream), respond).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_rejected_by_program_eject_no_endpoint() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    for (service, protocol) in [("shop/one", "http1"), ("shop/two", "http2")] {
        let mut endpoints = Vec::new();
        for instance in ["first", "second"] {
            let program =
                Plain { address: strict_program().await, under_way: Arc::default(), go_on: Arc::default() };
            let more = format!(" --inbound-protocol {protocol}");
            let instance = format!("{protocol}-{instance}");
            endpoints.push(in_front(&world, &program, service, &instance, &more).await);
        }
        let listen = format!("127.0.0.1:{}", free_port());
        let proxy = Proxy::with(&world, &format!("--listen {listen}={service}")).await;
        let curl = async |version: &str, target: &str| {
            let mut curl = tokio::process::Command::new("curl");
            curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--globoff", version]);
            let output = curl.arg(format!("http://{listen}{target}")).output().await;
            String::from_utf8(output.expect("this test needs curl").stdout).unwrap()
        };
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            for _ in 0..20 {
                assert_eq!(curl(version, "/?q={\"a\":1}").await, "400", "{service} {version}");
            }
        }
        assert_eq!(proxy.metric("attempts_total").await, 40.0, "{service}: none is repeated");
        let seen = Proxy::endpoints(&proxy.admin, service).await.json();
        let is_well =
            |endpoint: &Value| endpoint["state"] == "serving" && endpoint["consecutiveFailures"] == 0;
        let endpoints = seen.as_array().unwrap();
        assert!(endpoints.len() == 2 && endpoints.iter().all(is_well), "{service}: {seen}");
        assert_eq!(curl("--http1.1", "/").await, "200");
    }
}

/// Metrics after one request without an identity.
const SERVED_ONCE: &str = concat!(
    r#"http_server_request_duration_seconds_count{fairmesh_caller="(unknown)",fairmesh_callee="shop/two","#,
    r#"http_request_method="POST",http_response_status_code="200"} 1"#
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_requests_are_counted_logged_and_traced() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let program = Plain::start("plain").await;
    let address = format!("127.0.0.1:{}", free_port());
    let inbound = format!(
        "--inbound shop/two@{address}={} --inbound-instance plain --trace-one-in 1 --trace-to http://127.0.0.1:{}",
        program.address,
        free_port()
    );
    let proxy = Proxy::with(&world, &inbound).await;
    world.serves("shop/two", "plain").await;
    let answer = raw(&address, "/seen", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let series = r#"inbound_responses_total{service="shop/two",caller="(none)",class="2xx"} 1"#;
    until("it is counted", async || proxy.page("/metrics").await.contains(series)).await;
    let timed = r#"inbound_response_headers_duration_seconds_count{service="shop/two",caller="(none)"} 1"#;
    assert!(proxy.page("/metrics").await.contains(timed), "the time to its headers");
    assert!(proxy.page("/metrics").await.contains(SERVED_ONCE), "by the names of OpenTelemetry");
    let sent = r#"inbound_response_bytes_total{service="shop/two",caller="(none)"} 5"#;
    until("its body is counted", async || proxy.page("/metrics").await.contains(sent)).await;
    let given_up = say(&address, "GET /slow HTTP/1.1\r\nhost: two.shop\r\n\r\n").await;
    until("it is under way", async || program.under_way.load(Relaxed) == 1).await;
    drop(given_up);
    let cancelled = r#"inbound_responses_total{service="shop/two",caller="(none)",class="4xx"} 1"#;
    until("the cancellation is counted", async || proxy.page("/metrics").await.contains(cancelled)).await;
    assert!(proxy.page("/metrics").await.contains("fairmesh_proxy_inbound_connections_accepted_total"));
    let logged = |log: &str| {
        let line = log.lines().find(|line| line.contains(r#""path":"/seen""#))?;
        serde_json::from_str::<Value>(line).ok()
    };
    until("it is logged", async || logged(&proxy.process.log()).is_some()).await;
    let line = logged(&proxy.process.log()).unwrap();
    assert_eq!((&line["direction"], &line["status"]), (&"inbound".into(), &200.into()), "{line}");
    assert_eq!((&line["service"], &line["bytes_out"]), (&"shop/two".into(), &5.into()), "{line}");
    assert!(line["trace_id"].is_string(), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn register_counts_and_logs_requests_of_its_program() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let program = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // Probes connect and send nothing.
                let mut first = [0];
                while stream.read(&mut first).await.is_ok_and(|read| read > 0) {
                    let head = format!("{}{}", char::from(first[0]), read_head(&mut stream).await);
                    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
                    stream.write_all(response.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let [address, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = format!(
        "register shop/two --agent {} --address {address} --program {program} --instance plain --admin {admin} \
         --access-log json",
        world.agent_address()
    );
    let register = Process::start(Started::fairmesh(world.path("register.log"), &args));
    world.serves("shop/two", "plain").await;
    let seen = raw(&address, "/seen", "x_fairmesh_caller: forged\r\n").await.to_lowercase();
    assert!(seen.contains("x-forwarded-for: 127.0.0.1\r\n") && seen.contains("x-request-id: "), "{seen}");
    assert!(!seen.contains("forged"), "{seen}");
    let metrics = async || page(&admin, "/metrics").await;
    let series = r#"fairmesh_register_responses_total{service="shop/two",caller="(none)",class="2xx"} 1"#;
    until("it is counted", async || metrics().await.contains(series)).await;
    let timed =
        r#"fairmesh_register_response_headers_duration_seconds_count{service="shop/two",caller="(none)"} 1"#;
    assert!(metrics().await.contains(timed) && metrics().await.contains(SERVED_ONCE));
    until("it is logged", async || register.log().contains(r#""direction":"inbound""#)).await;
    assert!(page(&admin, "/readyz").await.contains("registered and serving"));
}

/// Fetches an admin page of a process.
async fn page(to: &str, path: &str) -> String {
    let mut stream =
        say(to, format!("GET {path} HTTP/1.1\r\nhost: pages\r\nconnection: close\r\n\r\n")).await;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}
