//! Two trust domains whose policies name callers and servers of each other.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::PathBuf,
    thread,
    time::Duration,
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use fairmesh_identity::{IdentityRequest, ProgramIdentity};
use fairmesh_test_support::free_port;
use fairmesh_wire::transport::{EndpointAddress, ExpectedPeer, Stream, Transport};
use serde_json::json;
use tokio::{io::AsyncReadExt as _, time::timeout};

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, over_tcp, request_certificate, runtime, start},
    support::{Mesh, Run, wait_until},
};

/// Time limit within which revocation and removal take effect, as stated in `docs/security-keys.md`.
const LIMIT: Duration = Duration::from_secs(10);
/// SPIFFE ids of the service in `prod` and of its caller.
const CART: &str = "spiffe://prod/shop/cart";
const WEB: &str = "spiffe://partner/bank/web";

/// Error of a caller in `partner` for certificates of other authorities.
const UNKNOWN: &str = "not issued by the trust domain partner";

/// A mesh with an agent.
struct Domain {
    mesh: Mesh,
    agent: String,
    tcp: String,
    _agent: Killed,
}

impl Domain {
    fn start(name: &str, sources: &[&str]) -> Self {
        let tcp = format!("127.0.0.1:{}", free_port());
        let mut mesh = Mesh::empty();
        mesh.arguments = ["--trust-domain", name, "--grpc", &tcp].map(String::from).to_vec();
        mesh.arguments.extend(sources.iter().copied().map(String::from));
        mesh.start_control();
        let (process, agent) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        Self { mesh, agent, tcp, _agent: process }
    }

    fn call(&self, service: &str, caller: &str) -> Run {
        self.mesh.run(&["call", service, "--agent", &self.agent, "--as", caller, "/items"])
    }

    /// Path of a file with this domain's roots.
    fn bundle(&self) -> String {
        self.mesh.path("data/ca/bundle.pem").display().to_string()
    }

    /// The roots as a SPIFFE bundle endpoint serves them.
    fn spiffe_bundle(&self) -> String {
        let pem = std::fs::read_to_string(self.bundle()).unwrap();
        let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        assert!(BASE64_STANDARD.decode(&base64).is_ok());
        let keys = json!([
            {"use": "x509-svid", "kty": "EC", "crv": "P-256", "x5c": [base64]},
            {"use": "jwt-svid", "kty": "EC", "crv": "P-256", "kid": "1"},
        ]);
        self.mesh.file(
            "bundle.json",
            &json!({"spiffe_sequence": 1, "spiffe_refresh_hint": 10, "keys": keys}).to_string(),
        )
    }

    fn federate(&self, with: &str, bundle: &str) -> Run {
        self.mesh.run(&["identity", "federation", "add", with, "--bundle", bundle])
    }

    /// Sets the callers that the service allows.
    fn allow(&self, from: &str) {
        let rules = format!("  rules: [{{name: callers, from: [{from}]}}]\n");
        self.mesh.apply(&format!("kind: Policy\nservice: shop/cart\nauthorization:\n{rules}")).ok();
    }

    async fn identity(&self, path: &str) -> Transport {
        let request = IdentityRequest {
            agent: self.agent.parse().unwrap(),
            path: Some(path.parse().unwrap()),
            software: "test".into(),
            patience: Duration::from_secs(5),
            workload_api: None,
            control_planes: Vec::new(),
            token: None,
        };
        ProgramIdentity::of_caller(request).await.unwrap().transport()
    }
}

/// `prod` has a server of `shop/cart`. In `partner`, the service `bank/cart` has this server as its endpoint.
fn two_domains() -> (Domain, Domain, Killed, u16) {
    let prod = Domain::start("prod", &[]);
    prod.mesh.apply("kind: Service\nname: shop/cart\n").ok();
    let (port, program) = (free_port(), format!("127.0.0.1:{}", echo()));
    let address = format!("127.0.0.1:{port}");
    let register =
        ["register", "shop/cart", "--agent", &prod.agent, "--address", &address, "--program", &program];
    let server = start(&register, None);
    wait_until("the service is called", || prod.call("shop/cart", "shop/web").code == Some(0));
    let endpoints = format!(
        "kind: Endpoints\nservice: bank/cart\nendpoints: [{{instance: cart-0, address: {address}, region: eu, mtls: true}}]\n"
    );
    let source = prod.mesh.file("cart.yaml", &endpoints);
    let partner = Domain::start("partner", &["--source", &source]);
    partner.mesh.apply(&format!("kind: Service\nname: bank/cart\nidentity: {CART}\n")).ok();
    let listed = || partner.mesh.run(&["get", "endpoints", "bank/cart", "--json"]).json();
    wait_until("the endpoint is read", || listed().as_array().is_some_and(|all| all.len() == 1));
    (prod, partner, server, port)
}

fn refused(run: &Run) -> bool {
    run.code != Some(0)
}

#[test]
fn federated_callers_are_accepted_only_by_exact_id() {
    let (prod, partner, _server, port) = two_domains();
    prod.allow(WEB);
    let call = |caller: &str| partner.call("bank/cart", caller);
    let error = call("bank/web");
    assert!(refused(&error) && error.err.contains(UNKNOWN), "no side is federated: {error:?}");
    partner.federate("prod", &prod.bundle()).ok();
    wait_until("the caller verifies the server", || {
        let run = call("bank/web");
        refused(&run) && !run.err.contains(UNKNOWN)
    });
    let listed = prod.mesh.run(&["identity", "federation", "list"]);
    assert!(listed.err.contains("federated with no other"), "{listed:?}");
    prod.federate("partner", &partner.spiffe_bundle()).ok();
    wait_until("both sides are federated", || !refused(&call("bank/web")));
    let listed = prod.mesh.run(&["identity", "federation", "list", "--json"]).json();
    assert_eq!(listed[0]["domain"], "partner", "{listed}");

    // Only the exact id is accepted: neither a path that a local service has too, nor a default.
    let other = call("bank/api");
    assert!(
        refused(&other) && other.err.contains("rejected the certificate"),
        "the policy names another: {other:?}"
    );
    for others in ["bank/web", "bank/*", "'spiffe://partner/*'", "'*'"] {
        prod.allow(others);
        wait_until("the policy no longer names it", || refused(&call("bank/web")));
        prod.allow(WEB);
        wait_until("the policy names it", || !refused(&call("bank/web")));
    }
    prod.mesh.run(&["delete", "authorization", "shop/cart"]).ok();
    wait_until("the default is for members", || refused(&call("bank/web")));
    prod.call("shop/cart", "shop/web").ok();
    let explain = |caller: &str| {
        let region = ["explain", "shop/cart", "--region", "eu", "--as"];
        prod.mesh.run(&[&region[..], &[caller]].concat())
    };
    assert!(explain(WEB).out.contains("another trust domain"), "{:?}", explain(WEB));
    prod.allow(WEB);
    assert!(explain(WEB).out.contains("allowed: rule 'callers'"), "{:?}", explain(WEB));
    wait_until("the policy names it", || !refused(&call("bank/web")));

    // The connections end and the caller is refused once its roots are replaced or its domain is removed.
    let ends_by = |change: &dyn Fn()| {
        runtime().block_on(async {
            let web = partner.identity("bank/web").await;
            let endpoint = EndpointAddress {
                address: ([127, 0, 0, 1], port).into(),
                peer: Some(ExpectedPeer::Id(&CART.parse().unwrap())),
                accepts_plaintext: false,
                from: None,
            };
            let mut stream: Stream = timeout(LIMIT, web.connect_endpoint(endpoint)).await.unwrap().unwrap();
            assert!(timeout(Duration::from_millis(200), stream.read_u8()).await.is_err(), "it is open");
            change();
            timeout(LIMIT, stream.read_u8()).await.expect("it is closed in time").unwrap_err();
        });
        assert!(refused(&call("bank/web")));
    };
    let (other, _) = domain();
    let others = other.path("data/ca/bundle.pem").display().to_string();
    ends_by(&|| drop(prod.federate("partner", &others).ok()));
    prod.federate("partner", &partner.bundle()).ok();
    wait_until("the roots are those of the partner again", || !refused(&call("bank/web")));
    ends_by(&|| {
        let remove = ["identity", "federation", "remove", "partner", "--message", "the contract ended"];
        prod.mesh.run(&remove).ok();
    });
    let error = prod.mesh.run(&["identity", "federation", "remove", "partner"]).fails(1);
    assert!(error.contains("is not federated"), "{error}");
}

/// Serves a file as a web server does until the test ends; returns the URL.
fn serve(path: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/bundle.json?key=7", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                line.clear();
            }
            let Ok(document) = fs::read(&path) else { continue };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", document.len());
            // A client that has disconnected reads no more.
            let _ = reader.get_mut().write_all(&[head.as_bytes(), &document].concat());
        }
    });
    url
}

#[test]
fn federated_roots_follow_bundle_endpoint_of_partner() {
    let (prod, partner, _server, _) = two_domains();
    prod.allow(WEB);
    partner.federate("prod", &prod.bundle()).ok();
    let call = || partner.call("bank/cart", "bank/web");
    let served = PathBuf::from(partner.spiffe_bundle());
    let url = serve(served.clone());
    let error = prod.federate("partner", "http://partner.example/bundle.json").fails(1);
    assert!(error.contains("plaintext HTTP"), "{error}");
    let error = prod.federate("partner", &format!("http://127.0.0.1:{}/", free_port())).fails(1);
    assert!(error.contains("Connection refused"), "{error}");
    prod.federate("partner", &url).ok();
    wait_until("both sides are federated", || !refused(&call()));
    let listed = || prod.mesh.run(&["identity", "federation", "list", "--json"]).json();
    let shown = listed()[0]["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with(&shown) && !shown.contains("key="), "{shown}");

    // A bundle with the mesh's own roots changes nothing.
    let (before, roots) = (fs::read(&served).unwrap(), listed()[0]["roots"].clone());
    fs::copy(prod.spiffe_bundle(), &served).unwrap();
    wait_until("it is said", || prod.mesh.control_log().contains("has a root of the mesh itself"));
    assert!(listed()[0]["roots"] == roots && !refused(&call()));
    // The served roots are trusted, and no others.
    fs::write(&served, before).unwrap();
    prod.federate("partner", &url.replace("key=7", "key=8")).ok();
    let (other, _) = domain();
    fs::copy(other.path("data/ca/bundle.pem"), &served).unwrap();
    wait_until("the new roots are recorded", || listed()[0]["roots"] != roots);
    wait_until("the caller is refused", || refused(&call()));
    let logged = prod.mesh.run(&["audit", "--key", "/g/identity/federation", "--json"]).out;
    assert!(logged.contains("its bundle endpoint serves other keys"), "{logged}");
    // Roots from a file end the polling of the endpoint.
    prod.federate("partner", &partner.bundle()).ok();
    assert!(listed()[0].get("url").is_none());
}

#[test]
fn federated_identities_are_never_mesh_members() {
    let (prod, partner, _server, _) = two_domains();
    prod.federate("partner", &partner.bundle()).ok();
    partner.federate("prod", &prod.bundle()).ok();
    // The control plane still knows no agents, operators or services of the partner.
    let binding = "kind: RoleBinding\nname: all\nrole: admin\nsubjects: ['spiffe://partner/*', 'fairmesh/operator/*', '*']\n";
    prod.mesh.apply(binding).ok();
    let run = over_tcp(&prod.tcp, &partner.agent, &["get", "services"]);
    assert!(refused(&run) && run.err.contains("a machine whose agent has joined"), "{run:?}");
    over_tcp(&prod.tcp, &prod.agent, &["get", "services"]).ok();
    assert_eq!(request_certificate(&prod.agent, "shop/web"), "", "members go on");
    // Roots of this domain are refused, as is a file without roots.
    for (domain, bundle, problem) in [
        ("prod", partner.bundle(), "the mesh itself"),
        ("other", prod.bundle(), "has a root of prod, the trust domain of the mesh itself"),
        ("other", prod.mesh.file("empty.pem", ""), "0 roots"),
        ("other", prod.mesh.file("empty.json", "{\"keys\": []}"), "0 roots"),
        ("other", prod.mesh.file("wrong.json", "{\"keys\": 7}"), "no JSON of that form"),
        (
            "other",
            prod.mesh.path("web-1/identity/identity.key").display().to_string(),
            "no certificate of an authority",
        ),
    ] {
        let error = prod.federate(domain, &bundle).fails(1);
        assert!(error.contains(problem), "{bundle}: {error}");
    }
}
