//! A fleet on its way from plaintext to mutual TLS.

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use fairmesh_test_support::free_port;

use super::{
    calls::echo,
    identities::{Killed, agent, has_certificate, plaintext, start},
    support::{Mesh, send, wait_until},
};

/// A program that calls through a proxy of its own, one call after the other.
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

    /// Ends, without a call that failed.
    fn end(self) {
        self.stops.store(true, Relaxed);
        let (made, failed) = self.calls.join().unwrap();
        assert!(made > 10 && failed.is_empty(), "of {made} calls failed: {failed:?}");
    }
}

fn is_success(response: &str) -> bool {
    response.contains("x-secret: tea")
}

/// Whether a call in plaintext to this port succeeds.
fn succeeds(port: u16) -> bool {
    is_success(&plaintext(port, "catalog.shop"))
}

fn set_mode(mesh: &Mesh, mode: &str) {
    mesh.apply(&format!("kind: Policy\nservice: shop/catalog\nmtls: {mode}\n")).ok();
}

/// A server of the service behind `fairmesh register`, once it is registered: in plaintext, or with mutual TLS.
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
fn a_fleet_moves_from_plaintext_to_mutual_tls_without_a_failed_call() {
    let mut mesh = Mesh::empty();
    mesh.arguments = ["--trust-domain", "none"].map(String::from).to_vec();
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    set_mode(&mesh, "permissive");
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    let (old, _) = serve(&mesh, &agent, false);
    let without_identity = Caller::start(&agent);

    // The mesh gets a trust domain, and servers start again, one after the other.
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
    assert_eq!(listed(), mesh.run(&["identity", "plaintext", "shop/catalog", "--json"]).json());

    // Callers follow, and then the policy.
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
