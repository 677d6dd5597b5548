//! The control plane's web page: in a browser, and the requests that it refuses.

mod kept_demo;
mod large_mesh;
mod mesh_pages;
mod proxy_requests;
mod traces_page;

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use axum::{Router, routing::get};
use fairmesh_client::{Body, Mesh as Library, ServiceHandle};
use fairmesh_model::{ServiceName, SpiffePath};
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_test_support::skipped;
use fairmesh_wire::transport::Address;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime, time::interval};

use super::support::{Agent, Mesh, wait_until};

const SERVICES: &str = "\
kind: Topology
regions: [{name: eu, neighbours: [us]}, {name: us}]
roundTrips: [{between: [eu, us], rtt: 20ms}]
---
kind: Service
name: shop/web
---
kind: Service
name: shop/cart
---
kind: Service
name: shop/catalog
---
kind: Service
name: shop/ads
---
kind: Service
name: shop/db
---
kind: Policy
service: shop/cart
timeout: 2s
authorization: {mode: audit, rules: [{name: web, from: [shop/web]}]}
";

/// A later value of a policy, so that its history has two.
const SLOWER: &str = "\
kind: Policy
service: shop/cart
timeout: 5s
retries: {attempts: 2}
authorization: {mode: audit, rules: [{name: web, from: [shop/web]}]}
";

/// Caller and callee of each edge; an empty name is a caller without a service identity.
const EDGES: &[(&str, &str)] = &[
    ("", "shop/web"),
    ("shop/web", "shop/cart"),
    ("shop/web", "shop/catalog"),
    ("shop/web", "shop/ads"),
    ("shop/cart", "shop/db"),
    ("shop/catalog", "shop/db"),
];

/// Starts a control plane with the services; returns the address of its page.
fn mesh() -> (Mesh, String) {
    let mesh = Mesh::start();
    mesh.apply(SERVICES).ok();
    mesh.apply(SLOWER).ok();
    let pages = mesh.pages();
    (mesh, pages)
}

/// Serves a service until its runtime ends, which is as sudden as a crash.
fn serve(service: &str, agent: &Agent) -> Runtime {
    let runtime = Runtime::new().unwrap();
    let address: Address = agent.address().parse().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = MeshServer::builder(service).listener(&listener).unwrap();
        let server = server.agent(address).start().await.unwrap();
        let router = Router::new().route("/", get("served"));
        tokio::spawn(async move { serve_http(listener, router, &server).await });
    });
    runtime
}

/// Makes calls along an edge until the runtime ends.
async fn call(agent: Address, (caller, callee): (&str, &str)) {
    let builder = Library::builder().agent(agent).client_id(format!("{caller}-{callee}"));
    let builder = match caller {
        "" => builder,
        caller => builder.identity(SpiffePath::Service(ServiceName::new(caller).unwrap())),
    };
    let library = builder.connect().await.unwrap();
    let service: ServiceHandle = library.service(callee).unwrap();
    tokio::spawn(async move {
        let _library = library;
        let mut ticks = interval(Duration::from_millis(25));
        loop {
            ticks.tick().await;
            let request = Request::get("/").body(Body::empty()).unwrap();
            if let Ok(response) = service.send(request).await {
                let _ = response.into_body().collect().await;
            }
        }
    });
}

/// Node with playwright-core, which drives a browser.
struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Browser {
    /// `None` if the machine lacks Node or the browser.
    fn start(url: &str) -> Option<Self> {
        let modules = modules().filter(|folder| folder.is_dir());
        let (Some(modules), Some(chromium)) = (modules, fairmesh_test_support::tool("chromium")) else {
            skipped(
                "no browser can be driven",
                "`scripts/setup.sh browser` installs Chromium and playwright-core",
            );
            return None;
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/web/browser.mjs");
        let mut child = Command::new("node")
            .arg(script)
            .arg(url)
            .env("MODULES", modules)
            .env("CHROMIUM", chromium)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Self { child, input, output })
    }

    /// Makes the browser execute a step; returns its result.
    fn step(&mut self, step: &Value) -> Value {
        writeln!(self.input, "{step}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let result: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(result["error"], Value::Null, "{step}");
        result["result"].clone()
    }

    /// Checks pages in both colour schemes for accessibility problems, and for errors of the browser.
    fn audit(&mut self, states: &[&str]) {
        let audit = self.step(&json!({"do": "audit", "states": states}));
        assert_eq!(audit, json!({"violations": [], "console": []}));
    }

    /// Takes screenshots for the documentation if their folder is given.
    fn take_screenshots(&mut self, shots: &Value) {
        if let Ok(folder) = env::var("WEB_SCREENSHOTS") {
            fs::create_dir_all(&folder).unwrap();
            self.step(&json!({"do": "screenshots", "folder": folder, "shots": shots}));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "{}", json!({"do": "end"}));
        wait_until("the browser ends", || self.child.try_wait().unwrap().is_some());
    }
}

/// Folder of the modules installed by `scripts/setup.sh browser`.
fn modules() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("fairmesh/tools/browser/node_modules"))
}

#[test]
fn web_page_shows_mesh_in_browser() {
    let (mesh, pages) = mesh();
    let Some(mut browser) = Browser::start(&format!("http://{pages}/ui/")) else { return };
    let (eu, us) = (mesh.agent("eu"), mesh.agent("us"));
    let servers = ["web", "cart", "ads", "db"].map(|name| serve(&format!("shop/{name}"), &eu));
    let catalog = serve("shop/catalog", &us);
    let callers = Runtime::new().unwrap();
    callers.block_on(async {
        for edge in EDGES {
            call(eu.address().parse().unwrap(), *edge).await;
        }
    });

    let shown = browser.step(&json!({"do": "graph", "services": 5, "nodes": 6, "edges": EDGES}));
    assert_eq!(shown["policy"], "default-src 'none'", "{shown}");
    let why = browser.step(&json!({"do": "why", "service": "shop/catalog", "region": "eu", "seed": "7"}));
    let told = mesh.run(&["explain", "shop/catalog", "--region", "eu", "--seed", "7", "--json"]).json();
    assert_eq!(why["goesTo"], told["goesTo"]["instance"]);
    assert_eq!(why["steps"].as_array().unwrap().len(), told["steps"].as_array().unwrap().len());
    browser.step(&json!({"do": "service", "service": "shop/cart", "versions": 2}));

    let [.., db] = servers;
    db.shutdown_background();
    let seen = browser.step(&json!({"do": "failing", "service": "shop/db", "caller": "shop/cart"}));
    assert!(seen["ms"].as_u64().unwrap() <= 10_000, "{seen}");
    browser.step(&json!({"do": "shows", "state": "service?service=shop/cart", "panels": [
        ["Who may call", "audited only"],
        ["Callers behind", "have applied its newest record"],
        ["What changed", "policy changed"],
        ["Refused callers", "GET /"],
    ]}));
    browser.step(&json!({"do": "shows", "state": "regions", "panels": [
        ["Calls between regions", "Received by region"],
        ["Calls between regions", "eu"],
        ["Calls between regions", "us"],
    ]}));
    browser.step(&json!({"do": "shows", "state": "graph?service=shop/catalog&split=region", "panels": [["Graph", ""]]}));
    browser.audit(&[
        "graph",
        "graph?service=shop/cart",
        "service?service=shop/cart",
        "why?service=shop/cart&region=eu",
        "regions",
    ]);
    browser.take_screenshots(&json!([
        ["graph", "graph", "light"],
        ["graph-dark", "graph?service=shop/cart", "dark"],
        ["service", "service?service=shop/cart", "light"],
    ]));
    drop(browser);
    callers.shutdown_background();
    catalog.shutdown_background();
}

/// Head of a response.
fn head(pages: &str, path: &str, host: &str, more: &str) -> String {
    respond(pages, ("GET", path), host, &format!("{more}\r\n"))
}

/// Head of the response to a request with any method; `rest` has the other headers and the body.
fn respond(pages: &str, (method, path): (&str, &str), host: &str, rest: &str) -> String {
    let mut stream = TcpStream::connect(pages).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{rest}");
    stream.write_all(request.as_bytes()).unwrap();
    // No further: the body of an event stream ends after a minute.
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\r\n").to_lowercase()
}

/// The data of the first event of this name in a stream.
fn event(pages: &str, path: &str, name: &str) -> String {
    let mut stream = TcpStream::connect(pages).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {pages}\r\n\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut lines = lines.skip_while(|line| *line != format!("event: {name}"));
    lines.find(|line| line.starts_with("data: ")).unwrap()
}

#[test]
fn web_page_shows_changes_of_mesh_only_to_viewer_of_all_tenants() {
    let mut mesh = Mesh::empty();
    mesh.arguments = ["--trust-domain", "test.mesh"].map(str::to_owned).to_vec();
    mesh.start_control();
    let pages = mesh.pages();
    mesh.apply("kind: Topology\nregions: [{name: eu}, {name: us}]\n---\nkind: Service\nname: shop/web\n")
        .ok();
    mesh.run(&["drain", "--region", "eu", "--yes", "--detach"]).ok();
    let look = "kind: RoleBinding\nname: look\nrole: viewer\nsubjects: [anonymous]\n";
    let changes = |path: &str| event(&pages, path, "changes");
    mesh.apply(&format!("{look}tenants: [shop]\n")).ok();
    for path in ["/ui/api/live/shop/web", "/ui/api/regions?tenant=shop"] {
        let shown = changes(path);
        assert!(
            !shown.contains("drain of the region") && !shown.contains("regions created"),
            "{path}: {shown}"
        );
    }
    assert!(changes("/ui/api/live/shop/web").contains("declaration created"));
    mesh.apply(look).ok();
    for path in ["/ui/api/live/shop/web", "/ui/api/regions"] {
        let shown = changes(path);
        assert!(shown.contains("drain of the region eu begun"), "{path}: {shown}");
        assert!(shown.contains("regions created"), "{path}: {shown}");
    }
}

#[test]
fn web_page_is_served_only_for_own_hosts_and_with_strict_csp() {
    let (_mesh, pages) = mesh();
    for host in [&*pages, "localhost:7401"] {
        let index = head(&pages, "/ui/", host, "");
        assert!(
            index.starts_with("http/1.1 200") && index.contains("default-src 'none'; script-src 'self'"),
            "{index}"
        );
    }
    for path in ["/ui/", "/ui/main.js", "/ui/api/live", "/ui/api/why/shop/web?region=eu"] {
        let rebound = head(&pages, path, "evil.example:7401", "accept-encoding: gzip\r\n");
        assert!(
            rebound.starts_with("http/1.1 421") && rebound.contains("default-src 'none'"),
            "{path}: {rebound}"
        );
    }
    let script = head(&pages, "/ui/main.js", &pages, "accept-encoding: gzip\r\n");
    assert!(script.starts_with("http/1.1 200") && script.contains("content-encoding: gzip"), "{script}");
    let tag = script.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let again = head(&pages, "/ui/main.js", &pages, &format!("if-none-match: {tag}\r\n"));
    assert!(again.starts_with("http/1.1 304"), "{again}");
    let unknown = head(&pages, "/ui/none.js", &pages, "accept-encoding: gzip\r\n");
    assert!(unknown.starts_with("http/1.1 404"), "{unknown}");
}

#[test]
fn web_page_refuses_cross_site_requests() {
    let (mesh, pages) = mesh();
    let body = r#"{"service": "shop/web", "endpoints": [{"instance": "evil-0", "address": "127.0.0.1:9", "region": "eu"}]}"#;
    let post = |more: &str| {
        let rest = format!("content-type: text/plain\r\ncontent-length: {}\r\n{more}\r\n{body}", body.len());
        respond(&pages, ("POST", "/v1/register"), &pages, &rest)
    };
    for more in ["origin: https://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        let refused = post(more);
        assert!(refused.starts_with("http/1.1 403"), "{more}: {refused}");
    }
    let listed = mesh.run(&["get", "endpoints", "shop/web"]).ok();
    assert!(!listed.contains("evil-0"), "{listed}");
    for path in ["/v1/imbalance", "/ui/api/live"] {
        let refused = head(&pages, path, &pages, "sec-fetch-site: same-site\r\n");
        assert!(refused.starts_with("http/1.1 403"), "{path}: {refused}");
    }
    for path in ["/ui/", "/healthz"] {
        let linked = head(&pages, path, &pages, "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n");
        assert!(linked.starts_with("http/1.1 200"), "{path}: {linked}");
    }
    assert!(post("").starts_with("http/1.1 200"), "a program may");
}

#[test]
fn web_page_of_strict_mesh_shows_viewer_only_own_tenant() {
    let mut mesh = Mesh::empty();
    mesh.arguments = ["--trust-domain", "test.mesh"].map(str::to_owned).to_vec();
    mesh.start_control();
    let pages = mesh.pages();
    mesh.apply("kind: Service\nname: shop/web\n---\nkind: Service\nname: bank/vault\n").ok();
    let is_refused = |path: &str| {
        let head = head(&pages, path, &pages, "");
        assert!(["200", "403", "404"].contains(&&head[9..12]), "{path}: {head}");
        &head[9..12] != "200"
    };
    assert!(!is_refused("/ui/"), "the page itself says nothing of the mesh");
    assert!(is_refused("/ui/api/history/shop/web"));
    mesh.apply("kind: RoleBinding\nname: look\nrole: viewer\ntenants: [shop]\nsubjects: [anonymous]\n").ok();
    for (path, expected) in [
        ("/ui/api/regions?tenant=shop", false),
        ("/ui/api/imbalance?tenant=shop", false),
        ("/ui/api/security?tenant=shop", false),
        ("/ui/api/traces?tenant=shop&service=shop/web", false),
        ("/ui/api/trace/00000000000000000000000000000001?tenant=shop", false),
        ("/ui/api/traces", true),
        ("/ui/api/traces?service=shop/web", true),
        ("/ui/api/traces?tenant=bank", true),
        ("/ui/api/trace/00000000000000000000000000000001", true),
        ("/ui/api/planner/shop/web", false),
        ("/ui/api/regions", true),
        ("/ui/api/regions?tenant=bank", true),
        ("/ui/api/imbalance", true),
        ("/ui/api/security?tenant=bank", true),
        ("/ui/api/planner/bank/vault", true),
        ("/ui/api/requests/shop/web", false),
        ("/ui/api/requests/bank/vault", true),
        ("/ui/api/forecast/eu", true),
        ("/ui/api/fleet", true),
        ("/ui/api/audit/security", true),
        ("/ui/api/history/shop/web", false),
        ("/ui/api/why/shop/web?region=eu", false),
        ("/ui/api/history/bank/vault", true),
        ("/ui/api/live/bank/vault", true),
        ("/ui/api/live", true),
        ("/ui/api/live?tenant=bank", true),
        ("/ui/api/why/bank/vault?region=eu", true),
    ] {
        assert_eq!(is_refused(path), expected, "{path}");
    }
    let other = head(&pages, "/ui/api/traces?tenant=shop&service=bank/vault", &pages, "");
    assert!(other.starts_with("http/1.1 400"), "{other}");
}
