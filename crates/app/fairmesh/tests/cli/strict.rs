//! Plaintext endpoints in a mesh with a trust domain: an intruder's endpoint gets no call, regardless of its record.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use fairmesh_test_support::free_port;

use super::{
    calls::echo,
    check::found,
    identities::{Killed, agent, domain, has_certificate, plaintext, start},
    support::{Mesh, wait_until},
};

/// Two services with an honest server each, and a third, to which calls are mirrored, with an intruder's endpoints
/// only. Health checkers probe, and slow calls are hedged.
const SERVICES: &str = "\
kind: Service
name: shop/vault
---
kind: Service
name: shop/audit
---
kind: Policy
service: shop/vault
healthCheck: {tcp: {}, interval: 100ms, timeout: 100ms}
routes: [{name: all, mirror: {service: shop/audit, share: 100%}, hedge: {after: 1ms}, idempotent: true}]
---
kind: Policy
service: shop/audit
healthCheck: {http: {path: /}, interval: 100ms, timeout: 100ms}
";

/// A program that answers any bytes, and counts its connections.
struct Intruder {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Intruder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&connections);
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Relaxed);
                thread::spawn(move || {
                    while stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged");
                    }
                });
            }
        });
        Self { port, connections }
    }

    fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Registers three instances of the intruder while the service's policy permits it.
    fn register(&self, mesh: &Mesh, service: &str) {
        mesh.apply(&format!("kind: Policy\nservice: {service}\nmtls: permissive\n")).ok();
        for i in 0..3 {
            mesh.register(service, &format!("intruder-{i}"), "eu", self.port);
        }
    }
}

/// A mesh with a trust domain and an agent that has joined.
fn mesh_with_agent() -> (Mesh, Killed, String) {
    let (mesh, _) = domain();
    let (process, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    (mesh, process, address)
}

/// Starts a proxy for programs; `more` adds arguments. Returns the port of its listener.
fn proxy(agent: &str, more: &[&str]) -> (Killed, u16) {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let arguments = ["proxy", "--agent", agent, "--admin", "none", "--listen", &listen];
    (start(&[&arguments[..], more].concat(), None), port)
}

/// Bytes received over a TCP connection through this port.
fn over_tcp(port: u16) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let _ = stream.write_all(b"GET /tcp HTTP/1.1\r\nhost: vault.shop\r\nconnection: close\r\n\r\n");
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read);
    String::from_utf8_lossy(&read).into_owned()
}

#[test]
fn plaintext_intruder_endpoint_gets_no_call_in_strict_mesh() {
    let (mesh, _agent, agent) = mesh_with_agent();
    let intruder = Intruder::start();
    intruder.register(&mesh, "shop/vault");
    intruder.register(&mesh, "shop/audit");
    let warned = mesh.apply(SERVICES).err;
    assert!(warned.contains("plaintext endpoints in this strict mesh: intruder-0"), "{warned}");
    let program = format!("127.0.0.1:{}", echo());
    let register = ["register", "shop/vault", "--agent", &agent, "--address", &program];
    let _honest = start(&register, None);

    let inbound = format!("shop/web@127.0.0.1:{}=127.0.0.1:{}", free_port(), echo());
    let tcp = free_port();
    let tunnels = format!("tcp:127.0.0.1:{tcp}=shop/vault");
    let (_remote, remote) = proxy(&agent, &["--listen", &tunnels]);
    let (_beside, beside) = proxy(&agent, &["--inbound", &inbound]);
    let picks = format!("127.0.0.1:{}", free_port());
    let _lookaside = start(&["lookaside", "--listen", &picks, "--admin", "none", "--agent", &agent], None);

    let call = |more: &[&str]| {
        let arguments = ["call", "shop/vault", "/items", "-H", "x-secret: tea", "--agent", &agent];
        mesh.run(&[&arguments[..], more].concat()).out.contains("x-secret: tea")
    };
    let is_honest = |port| plaintext(port, "vault.shop").contains("x-secret: tea");
    wait_until("programs call by the library", || call(&[]));
    wait_until("programs call by the lookaside", || call(&["--lookaside", &picks]));
    for port in [remote, beside] {
        wait_until("programs call by the proxy", || is_honest(port));
        assert!((0..30).all(|_| is_honest(port)));
    }
    wait_until("programs are tunnelled", || over_tcp(tcp).contains("GET /tcp"));
    assert!((0..30).all(|_| over_tcp(tcp).contains("GET /tcp")));
    assert!((0..3).all(|_| call(&[]) && call(&["--lookaside", &picks])));
    let verdicts = || mesh.run(&["get", "health", "shop/audit", "--json"]).out;
    wait_until("the checker has judged the intruder", || {
        verdicts().contains("plaintext endpoint in a strict mesh")
    });
    assert_eq!(intruder.connections(), 0);

    // Shows that the intruder does count connections, and that each caller would call it.
    mesh.apply("kind: Policy\nservice: shop/vault\nmtls: permissive\n").ok();
    wait_until("the policy permits plaintext", || !(0..5).all(|_| is_honest(beside)));
    assert!(intruder.connections() > 0);
}

#[test]
fn call_to_plaintext_only_service_fails_with_hint() {
    let (mesh, _agent, agent) = mesh_with_agent();
    let intruder = Intruder::start();
    intruder.register(&mesh, "shop/vault");
    mesh.apply("kind: Service\nname: shop/vault\n---\nkind: Policy\nservice: shop/vault\n").ok();
    let said = "plaintext endpoint in a strict mesh";
    let control = mesh.address();
    // Also for a caller without an identity, which learns of the trust domain from the records.
    for from in [["--agent", &agent], ["--control", &control]] {
        let failed = mesh.run(&[&["call", "shop/vault", "/"], &from[..]].concat()).fails(1);
        assert!(
            failed.contains("3 plaintext endpoints in a strict mesh") && failed.contains("mtls: permissive"),
            "{failed}"
        );
    }
    let explained = mesh.run(&["explain", "shop/vault", "--region", "eu"]);
    assert!(explained.out.contains(&format!("not used: {said}: intruder-0")), "{explained:?}");
    let listed = mesh.run(&["get", "endpoints", "shop/vault", "--json"]).json();
    assert_eq!(listed[0]["state"], "refused");
    assert!(listed[0]["why"].as_str().unwrap().starts_with(said), "{listed}");
    let ports =
        ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--json", "--agent", &agent];
    let checked = mesh.run(&[&["check"], &ports[..]].concat());
    assert!(found(&checked).contains(&"endpoint.plaintext".to_owned()), "{checked:?}");
    assert_eq!(intruder.connections(), 0);
}

#[test]
fn register_uses_mutual_tls_for_its_program_unless_disabled() {
    let (mesh, _agent, agent) = mesh_with_agent();
    mesh.apply("kind: Service\nname: shop/vault\n").ok();
    let port = echo();
    let program = format!("127.0.0.1:{port}");
    let register = ["register", "shop/vault", "--agent", &agent, "--address", &program];
    let endpoints = || mesh.run(&["get", "endpoints", "shop/vault", "--json"]).json();
    let call =
        || mesh.run(&["call", "shop/vault", "/items", "--agent", &agent]).out.starts_with("GET /items");

    let by_default = start(&register, None);
    wait_until("it is registered", || endpoints()[0]["mtls"] == true);
    let instance = endpoints()[0]["instance"].as_str().unwrap().to_owned();
    assert!(instance.ends_with(&format!(":{port}")), "it is named after the program: {instance}");
    let address = endpoints()[0]["address"].as_str().unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:") && address != program, "{address}");
    wait_until("it is called", call);
    drop(by_default);

    let listen = format!("127.0.0.1:{}", free_port());
    let _given = start(&[&register[..], &["--listen", &listen]].concat(), None);
    wait_until("it listens where it is told to", || endpoints()[0]["address"] == listen.as_str());
    wait_until("it is called", call);

    let plain = [&register[..], &["--plaintext", "--instance", "plain"]].concat();
    let refused = mesh.run(&plain).fails(2);
    assert!(
        refused.contains("plaintext endpoint in a strict mesh") && refused.contains("mtls: permissive"),
        "{refused}"
    );
    mesh.apply("kind: Policy\nservice: shop/vault\nmtls: permissive\n").ok();
    let _plain = start(&plain, None);
    let is_plain = |one: &serde_json::Value| one["instance"] == "plain" && one["mtls"] != true;
    wait_until("it is registered", || endpoints().as_array().unwrap().iter().any(is_plain));
}

#[test]
fn register_waits_until_agent_knows_trust_domain() {
    let (mesh, _) = domain();
    let address = format!("unix:{}", mesh.path("web-1.sock").display());
    let program = format!("127.0.0.1:{}", echo());
    let log = mesh.path("register.log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command
        .args(["register", "shop/vault", "--agent", &address, "--address", &program, "--interval", "100ms"])
        .env_clear()
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap());
    let _early = Killed(command.spawn().unwrap());
    wait_until("it waits", || {
        std::fs::read_to_string(&log).unwrap().contains("waiting for the agent to say whether")
    });
    let (_agent, _) = agent(&mesh, "web-1", &mesh.address(), None);
    let endpoints = || mesh.run(&["get", "endpoints", "--json"]).json();
    wait_until("it is registered", || endpoints()[0]["mtls"] == true);
}

#[test]
fn registry_refuses_plaintext_endpoint_of_strict_service() {
    let (mesh, _) = domain();
    let (program, control) = (format!("127.0.0.1:{}", echo()), mesh.address());
    let log = mesh.path("register.log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    // The control plane's socket provides no identity, so this command knows of no trust domain.
    command
        .args(["register", "shop/vault", "--control", &control, "--region", "eu", "--address", &program])
        .env_clear()
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap());
    let _plain = Killed(command.spawn().unwrap());
    let said = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    wait_until("it is refused", || said("plaintext endpoint in a strict mesh"));
    assert!(said("mtls: permissive"));
    mesh.apply("kind: Policy\nservice: shop/vault\nmtls: permissive\n").ok();
    wait_until("it is permitted", || said("is registered and serving"));
}
