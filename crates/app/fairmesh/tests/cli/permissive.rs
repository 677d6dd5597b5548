//! A fleet that migrates from plaintext to mutual TLS.

use std::{
    convert::Infallible,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_test_support::free_port;
use http_body_util::Full;
use tokio::net::TcpListener;

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, plaintext, runtime, start},
    support::{Mesh, send, wait_until},
};

/// A program that makes sequential calls through its own proxy.
struct Caller {
    port: u16,
    stops: Arc<AtomicBool>,
    calls: JoinHandle<(usize, Vec<String>)>,
    _proxy: Killed,
}

impl Caller {
    fn start(agent: &str) -> Self {
        let port = free_port();
        let [listen, admin] = [port, free_port()].map(|port| format!("127.0.0.1:{port}"));
        let proxy = start(&["proxy", "--agent", agent, "--admin", &admin, "--listen", &listen], None);
        wait_until("the proxy calls the service", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok() && succeeds(port)
        });
        let stops = Arc::<AtomicBool>::default();
        let calls = thread::spawn({
            let stops = Arc::clone(&stops);
            move || {
                let (mut made, mut failed) = (0, Vec::new());
                while !stops.load(Relaxed) {
                    made += 1;
                    let response = plaintext(port, "catalog.shop");
                    failed.extend(Some(response).filter(|response| !is_success(response)));
                }
                (made, failed)
            }
        });
        Self { port, stops, calls, _proxy: proxy }
    }

    /// Stops the caller and asserts that no call failed.
    fn end(self) {
        self.stops.store(true, Relaxed);
        let (made, failed) = self.calls.join().unwrap();
        assert!(made > 10 && failed.is_empty(), "of {made} calls failed: {failed:?}");
    }
}

fn is_success(response: &str) -> bool {
    response.contains("x-secret: tea")
}

/// Whether a plaintext call to this port succeeds.
fn succeeds(port: u16) -> bool {
    is_success(&plaintext(port, "catalog.shop"))
}

fn set_mode(mesh: &Mesh, mode: &str) {
    mesh.apply(&format!("kind: Policy\nservice: shop/catalog\nmtls: {mode}\n")).ok();
}

/// Starts a server of the service behind `fairmesh register`, in plaintext or with mutual TLS, and waits until it is
/// registered.
fn serve(mesh: &Mesh, agent: &str, mtls: bool) -> (Killed, u16) {
    let port = free_port();
    let [address, program] = [port, echo()].map(|port| format!("127.0.0.1:{port}"));
    let register = ["register", "shop/catalog", "--agent", agent, "--address", &address];
    let server = start(&[&register[..], &["--program", &program]].concat(), None);
    wait_until("the server is registered", || {
        let endpoints = mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
        let is_this = |one: &&serde_json::Value| one["address"] == address.as_str();
        endpoints.as_array().unwrap().iter().find(is_this).is_some_and(|one| (one["mtls"] == true) == mtls)
    });
    (server, port)
}

#[test]
fn mesh_migrates_from_plaintext_to_mutual_tls_without_failed_call() {
    let mut mesh = Mesh::empty();
    mesh.arguments = ["--trust-domain", "none"].map(String::from).to_vec();
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    set_mode(&mesh, "permissive");
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    let (old, _) = serve(&mesh, &agent, false);
    let without_identity = Caller::start(&agent);

    // The mesh gets a trust domain, and servers restart one after the other.
    mesh.stop_control("TERM");
    mesh.arguments = ["--trust-domain", "prod"].map(String::from).to_vec();
    mesh.start_control();
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let (_new, port) = serve(&mesh, &agent, true);
    send(&old.0, "TERM");
    wait_until("only the new server is left", || {
        mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json().as_array().unwrap().len() == 1
    });
    assert!(succeeds(port), "the policy permits plaintext");
    let listed = || mesh.run(&["identity", "plaintext", "--json"]).json();
    wait_until("the callers in plaintext are listed", || listed()[0]["caller"] == "127.0.0.1");
    let of_service = mesh.run(&["identity", "plaintext", "shop/catalog", "--json"]).json();
    for field in ["service", "instance", "caller"] {
        assert_eq!(of_service[0][field], listed()[0][field], "{field}");
    }

    // Callers follow, then the policy.
    let with_identity = Caller::start(&agent);
    let port_without = without_identity.port;
    assert!(succeeds(port_without), "a caller without an identity still calls");
    without_identity.end();
    set_mode(&mesh, "strict");
    wait_until("plaintext is refused", || !succeeds(port));
    assert!(mesh.run(&["identity", "plaintext"]).err.contains("no policy says 'mtls: permissive'"));
    assert!(succeeds(with_identity.port));
    with_identity.end();
}

/// Runs a server of the library on a separate thread until the test ends.
fn serve_by_library(agent: &str, port: u16) {
    let agent = agent.parse().unwrap();
    thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
            let server = MeshServer::builder("shop/catalog")
                .address(listener.local_addr().unwrap())
                .protocol(Protocol::Http1)
                .agent(agent)
                .start()
                .await
                .unwrap();
            let respond = tower::service_fn(async |request: http::Request<hyper::body::Incoming>| {
                let mut response = http::Response::new(Full::<Bytes>::default());
                if let Some(secret) = request.headers().get("x-secret") {
                    response.headers_mut().insert("x-secret", secret.clone());
                }
                Ok::<_, Infallible>(response)
            });
            serve_http(listener, respond, &server).await.unwrap();
        });
    });
}

/// Sends a request over an open connection; returns the response.
fn request_again(stream: &mut TcpStream) -> String {
    let _ = write!(stream, "GET /items HTTP/1.1\r\nhost: catalog.shop\r\nx-secret: tea\r\n\r\n");
    let (mut read, mut text) = ([0; 4096], String::new());
    let is_refusal = |text: &str| text.starts_with("HTTP/1.1 4") || text.starts_with("HTTP/1.1 5");
    while !is_success(&text) && !is_refusal(&text) {
        match stream.read(&mut read) {
            Ok(length @ 1..) => text += &String::from_utf8_lossy(&read[..length]),
            _ => break,
        }
    }
    text
}

#[test]
fn proxies_and_library_servers_accept_plaintext_under_permissive_policy() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let [inbound, library] = [(); 2].map(|()| free_port());
    let admin = format!("127.0.0.1:{}", free_port());
    let from_to = format!("shop/catalog@127.0.0.1:{inbound}=127.0.0.1:{}", echo());
    let _proxy = start(&["proxy", "--agent", &agent, "--admin", &admin, "--inbound", &from_to], None);
    serve_by_library(&agent, library);
    let call = || mesh.run(&["call", "shop/catalog", "--agent", &agent, "--as", "shop/web", "/items"]).code;
    wait_until("both are registered with mutual TLS", || {
        let endpoints = mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
        endpoints.as_array().is_some_and(|all| all.len() == 2 && all.iter().all(|one| one["mtls"] == true))
    });
    for port in [inbound, library] {
        assert!(!succeeds(port), "{port}: the policy is strict");
    }
    set_mode(&mesh, "permissive");
    let mut open = Vec::new();
    for port in [inbound, library] {
        wait_until("plaintext is permitted", || succeeds(port));
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        assert!(is_success(&request_again(&mut stream)), "{port}");
        open.push(stream);
        assert_eq!(call(), Some(0), "mutual TLS goes on");
    }
    let listed = || mesh.run(&["identity", "plaintext", "shop/catalog", "--json"]).json();
    wait_until("both list their caller", || {
        listed()
            .as_array()
            .is_some_and(|all| all.len() == 2 && all.iter().all(|one| one["caller"] == "127.0.0.1"))
    });
    set_mode(&mesh, "strict");
    for (port, mut stream) in [inbound, library].into_iter().zip(open) {
        wait_until("plaintext is refused", || !succeeds(port));
        assert!(!is_success(&request_again(&mut stream)), "{port}: over an open connection too");
        assert_eq!(call(), Some(0));
    }
}
