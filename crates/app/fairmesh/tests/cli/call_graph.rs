//! The call graph from programs' reports, compared with the graph that the programs' code makes.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener as StdListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use axum::{Router, extract::Path, routing::get};
use fairmesh_client::{Body, Mesh as Library, ServiceHandle};
use fairmesh_server::{MeshServer, ParentCall, serve_http};
use fairmesh_test_support::free_port;
use fairmesh_wire::transport::Address;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::{net::TcpListener, runtime::Runtime, sync::Semaphore, time::interval};

use super::{
    calls::echo,
    support::{Mesh, wait_until},
};

const SERVICES: &str = "\
kind: Service
name: shop/web
---
kind: Service
name: shop/cart
---
kind: Service
name: shop/stock
---
kind: Policy
service: shop/web
routes: [{name: bulk, match: {path: {prefix: /bulk}}, class: bulk}]
---
kind: Policy
service: shop/cart
routes: [{name: bulk, match: {path: {prefix: /bulk}}, class: bulk}]
";

/// Largest number of concurrent user requests.
const MAX_IN_FLIGHT: usize = 4;
/// Minimum rate that counts as demand, in calls per second. It is well below the load, and above the difference that
/// arises when reports end at different moments.
const MIN_DEMAND: f64 = 2.0;

/// Calls per call of the parent, by the names of both nodes.
type Edges = BTreeMap<(String, String), f64>;

async fn call(service: &ServiceHandle, path: &str, trace: Option<u64>) -> bool {
    let mut request = Request::get(path);
    if let Some(trace) = trace {
        request = request.header("traceparent", format!("00-{trace:032x}-{trace:016x}-00"));
    }
    let Ok(response) = service.send(request.body(Body::empty()).unwrap()).await else { return false };
    let is_success = response.status().is_success();
    is_success && response.into_body().collect().await.is_ok()
}

/// Serves a service with the library until the runtime ends.
async fn serve(service: &str, agent: &Address, router: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = MeshServer::builder(service).listener(&listener).unwrap();
    let server = server.agent(agent.clone()).start().await.unwrap();
    tokio::spawn(async move { serve_http(listener, router, &server).await });
}

async fn library(agent: &Address, client: &str) -> Library {
    Library::builder().agent(agent.clone()).client_id(client).connect().await.unwrap()
}

/// Requests two pages of the web service twenty times per second; one page has another class. Each request has its own
/// trace. On a busy machine the rate is lower, since late or failed calls would change the graph.
async fn load(web: ServiceHandle) {
    let mut ticks = interval(Duration::from_millis(50));
    let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    for trace in 1_u64.. {
        ticks.tick().await;
        let permit = in_flight.clone().acquire_owned().await.unwrap();
        let web = web.clone();
        tokio::spawn(async move {
            call(&web, "/page", Some(2 * trace)).await;
            call(&web, "/bulk/page", Some(2 * trace + 1)).await;
            drop(permit);
        });
    }
}

fn edges(graph: &Value) -> Edges {
    let name = |node: &Value| match node["class"].as_str() {
        Some(class) => format!("{} {class}", node["service"].as_str().unwrap()),
        None => node["service"].as_str().unwrap().to_owned(),
    };
    let edges = graph["edges"].as_array().unwrap().iter();
    let edges = edges.map(|edge| {
        let times = edge["callsPerParentCall"].as_f64().unwrap_or_default();
        ((name(&edge["parent"]), name(&edge["child"])), times)
    });
    edges.collect()
}

/// Waits until the graph below the web service has exactly these edges, with multiplicities within 2 %.
fn expect_graph(mesh: &Mesh, expected: &[(&str, &str, f64)]) -> Value {
    let expected: Edges = expected
        .iter()
        .map(|(parent, child, times)| ((parent.to_string(), child.to_string()), *times))
        .collect();
    let mut graph = Value::Null;
    wait_until("the graph is that of the source", || {
        graph = mesh.run(&["traffic", "graph", "shop/web", "--json"]).json();
        let seen = edges(&graph);
        seen.keys().eq(expected.keys())
            && seen.iter().all(|(edge, times)| (times / expected[edge] - 1.0).abs() <= 0.02)
    });
    graph
}

/// Waits until the region's demand consists of the two classes of the web service only.
fn expect_roots(mesh: &Mesh) {
    // Reports of callers and of servers end at different moments, which matters more the shorter the counted time is.
    wait_until("both classes of the web alone are demand of the region", || {
        let graph = mesh.run(&["traffic", "graph", "shop/web", "--json"]).json();
        let roots = graph["nodes"].as_array().unwrap().iter();
        let mut roots = roots.filter(|node| node["demandPerSecond"]["eu"].as_f64() > Some(MIN_DEMAND));
        roots.clone().count() == 2 && roots.all(|root| root["node"]["service"] == "shop/web")
    });
}

#[test]
fn library_reports_call_graph_of_its_program() {
    let mesh = Mesh::start();
    mesh.apply(SERVICES).ok();
    let agent = mesh.agent("eu");
    let address: Address = agent.address().parse().unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let of_web = library(&address, "web").await;
        let [cart, stock] = ["shop/cart", "shop/stock"].map(|name| of_web.service(name).unwrap());
        serve("shop/stock", &address, Router::new().route("/left", get(|| async { "3" }))).await;
        let item = move || {
            let stock = stock.clone();
            async move {
                // A spawned task, which gets the parent call from the handler.
                let parent = ParentCall::current();
                let asked = tokio::spawn(parent.scope(async move { call(&stock, "/left", None).await }));
                asked.await.unwrap().to_string()
            }
        };
        serve("shop/cart", &address, Router::new().route("/item", get(item)).route("/bulk", get("9"))).await;
        let page = {
            let cart = cart.clone();
            move || {
                let cart = cart.clone();
                async move { (call(&cart, "/item", None).await && call(&cart, "/item", None).await).to_string() }
            }
        };
        let bulk = move |Path(_): Path<String>| {
            let cart = cart.clone();
            async move { call(&cart, "/bulk", None).await.to_string() }
        };
        serve("shop/web", &address, Router::new().route("/page", get(page)).route("/bulk/{page}", get(bulk))).await;
        let of_user = library(&address, "user").await;
        tokio::spawn(load(of_user.service("shop/web").unwrap()));
    });
    let expected = [
        ("shop/web", "shop/cart", 2.0),
        ("shop/web bulk", "shop/cart bulk", 1.0),
        ("shop/cart", "shop/stock", 1.0),
    ];
    expect_graph(&mesh, &expected);
    expect_roots(&mesh);

    let tree = mesh.run(&["traffic", "graph", "shop/web"]).ok();
    for line in ["├─ shop/cart", "└─ shop/cart [bulk]", "└─ shop/stock"] {
        assert!(tree.contains(line) || tree.contains(&line.replace('├', "└")), "{line} in {tree}");
    }
    let svg = mesh.path("graph.svg");
    let dot = mesh.run(&["traffic", "graph", "shop/web", "--dot", "--svg", svg.to_str().unwrap()]).ok();
    assert!(dot.contains("\"shop/web\" -> \"shop/cart\""), "{dot}");
    assert_eq!(std::fs::read_to_string(svg).unwrap().matches("<path").count(), 3);
    runtime.shutdown_background();
}

/// A program without the library. For each request, it calls the cart through its sidecar, twice for an ordinary page
/// and once for a bulk page, and propagates the trace.
fn unmodified_program(sidecar: String) -> u16 {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let sidecar = sidecar.clone();
            thread::spawn(move || answer_requests(stream.unwrap(), &sidecar));
        }
    });
    port
}

fn answer_requests(stream: TcpStream, sidecar: &str) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut first, mut trace) = (String::new(), String::new(), String::new());
        while reader.read_line(&mut line).unwrap_or_default() > 2 {
            if first.is_empty() {
                first.clone_from(&line);
            }
            if line.to_lowercase().starts_with("traceparent:") {
                trace.clone_from(&line);
            }
            line.clear();
        }
        if first.is_empty() {
            return;
        }
        let paths: &[&str] = if first.contains("/bulk") { &["/bulk"] } else { &["/item", "/item"] };
        paths.iter().for_each(|path| call_cart(sidecar, path, &trace));
        let _ = reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    }
}

fn call_cart(sidecar: &str, path: &str, trace: &str) {
    let Ok(mut stream) = TcpStream::connect(sidecar) else { return };
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nhost: cart.shop\r\n{trace}connection: close\r\n\r\n");
    let _ = stream.read_to_string(&mut String::new());
}

/// A proxy for a program's inbound and outbound calls; it ends on drop.
struct Sidecar {
    process: Child,
    admin: String,
}

impl Sidecar {
    fn start(mesh: &Mesh, agent: &str, listen: &str, (service, program): (&str, u16)) -> Self {
        let [inbound, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let inbound = format!("{service}@{inbound}=127.0.0.1:{program}");
        let child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(["proxy", "--listen", listen, "--admin", &admin, "--inbound", &inbound])
            .args(["--inbound-instance", "one", "--client-id", service, "--agent", agent])
            .env_clear()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        mesh.run(&["wait", "proxy", "--admin", &admin]).ok();
        Self { process: child, admin }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn sidecars_report_call_graph_of_their_programs() {
    let mesh = Mesh::start();
    mesh.apply(SERVICES).ok();
    let agent = mesh.agent("eu");
    let [of_web, of_cart] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let _cart = Sidecar::start(&mesh, &agent.address(), &of_cart, ("shop/cart", echo()));
    let program = unmodified_program(of_web.clone());
    let web = Sidecar::start(&mesh, &agent.address(), &of_web, ("shop/web", program));
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let of_user = library(&agent.address().parse().unwrap(), "user").await;
        tokio::spawn(load(of_user.service("shop/web").unwrap()));
    });
    let expected = [("shop/web", "shop/cart", 2.0), ("shop/web bulk", "shop/cart bulk", 1.0)];
    expect_graph(&mesh, &expected);
    let proposed = mesh.run(&["traffic", "classes", "shop/cart", "--admin", &web.admin, "--for", "2s"]).ok();
    assert!(
        proposed.contains("/item") && proposed.contains("/bulk"),
        "the paths of forwarded requests: {proposed}"
    );
    runtime.shutdown_background();
}
