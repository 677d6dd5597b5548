//! A trust domain, from its creation to calls over mutual TLS.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fairmesh_identity::{Authority, Clock as _, IdentityRequest, PrivateKey, ProgramIdentity, SystemClock};
use fairmesh_model::TrustDomain;
use fairmesh_test_support::free_port;
use fairmesh_wire::{
    handshake,
    v1::{Endpoint, IssueWorkloadRequest, Location, Op, WriteRequest, endpoint::State},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

use super::{
    calls::echo,
    support::{Mesh, Run, fairmesh, send, wait_until},
};

/// A control plane with the trust domain `prod` that also listens on TCP; returns its TCP address.
pub(crate) fn domain() -> (Mesh, String) {
    let tcp = format!("127.0.0.1:{}", free_port());
    let mut mesh = Mesh::empty();
    mesh.arguments = ["--trust-domain", "prod", "--grpc", &tcp].map(String::from).to_vec();
    mesh.start_control();
    (mesh, tcp)
}

/// A process that is killed on drop.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn start(args: &[&str], token: Option<&str>) -> Killed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command.args(args).env_clear().stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(token) = token {
        command.env("FAIRMESH_JOIN_TOKEN", token);
    }
    Killed(command.spawn().unwrap())
}

/// Starts an agent that joins over TCP with a token; returns its address.
pub(crate) fn agent(mesh: &Mesh, name: &str, upstream: &str, token: Option<&str>) -> (Killed, String) {
    let address = format!("unix:{}", mesh.path(&format!("{name}.sock")).display());
    let state = mesh.path(name);
    let (who, where_to) = (["agent", "--name", name, "--region", "eu"], ["--control", upstream]);
    let listen = ["--admin", "none", "--listen", &address, "--state-dir", state.to_str().unwrap()];
    let args = [&who[..], &where_to, &listen].concat();
    let agent = start(&args, token);
    let socket = mesh.path(&format!("{name}.sock"));
    wait_until("the agent listens", || UnixStream::connect(&socket).is_ok());
    (agent, address)
}

pub(crate) fn joined(mesh: &Mesh) -> Vec<String> {
    let listed = mesh.run(&["identity", "list", "--json"]).json();
    listed.as_array().unwrap().iter().map(|agent| agent["id"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn has_certificate(mesh: &Mesh, agent: &str) -> bool {
    mesh.path(agent).join("identity/identity.key").exists()
}

pub(crate) fn token(mesh: &Mesh, args: &[&str]) -> String {
    mesh.run(&[&["identity", "token"], args].concat()).ok().trim().to_owned()
}

#[test]
fn certificate_authority_is_shown_and_rotated_by_its_user() {
    let (mesh, tcp) = domain();
    let shown = mesh.run(&["identity", "show", "--json"]).json();
    assert_eq!(shown["domain"], "prod");
    assert_eq!((shown["roots"].as_array().unwrap().len(), &shown["rootKeyPresent"]), (1, &true.into()));
    for file in ["data/ca/root.key", "data/ca/issuer.key"] {
        let mode = std::fs::metadata(mesh.path(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let rotated = mesh.run(&["identity", "rotate", "--root", "--json"]).json();
    assert_eq!((rotated["roots"].as_array().unwrap().len(), &rotated["issuer"]), (2, &shown["issuer"]));
    let refused = mesh.run(&["identity", "rotate"]).fails(1);
    assert!(refused.contains("not all programs trust it") && refused.contains("--force"), "{refused}");
    assert_eq!(mesh.run(&["identity", "show", "--json"]).json()["issuer"], shown["issuer"]);
    let rotated = mesh.run(&["identity", "rotate", "--force", "--json"]).json();
    assert_ne!(rotated["issuer"], shown["issuer"]);
    // Rotates the issuer with the same root.
    mesh.run(&["identity", "rotate"]).ok();
    // Over TCP, members may read, and nobody may do more.
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    over_tcp(&tcp, &agent, &["identity", "show"]).ok();
    for command in [&["identity", "token", "web-1"][..], &["identity", "rotate"]] {
        let error = over_tcp(&tcp, &agent, command).fails(1);
        assert!(error.contains("only the user of the control plane"), "{error}");
    }
    // Plaintext is refused.
    let error = fairmesh(&tcp, &["identity", "show"], "").fails(1);
    assert!(error.contains("accepts only programs of a machine whose agent has joined"), "{error}");
}

#[test]
fn root_and_agent_records_cannot_be_written_over_network() {
    let (mesh, tcp) = domain();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let error = runtime().block_on(async {
        let request = IdentityRequest {
            agent: agent.parse().unwrap(),
            workload_api: None,
            control_planes: Vec::new(),
            token: None,
            path: None,
            software: "test".into(),
            patience: Duration::from_secs(5),
        };
        let transport = ProgramIdentity::of_caller(request).await.unwrap().transport();
        let connection = handshake::connect(&transport, &tcp.parse().unwrap(), "test").await.unwrap();
        let op =
            Op { key: "/g/identity/agents/evil".into(), value: Some(Vec::new().into()), ..Op::default() };
        connection.rib().write(WriteRequest { ops: vec![op] }).await.unwrap_err()
    });
    assert!(error.message().contains("only the user of the control plane"), "{error}");
    assert_eq!(joined(&mesh), ["spiffe://prod/fairmesh/agent/web-1"]);
}

/// Runs a command against a control plane over TCP, with the identity of an agent's machine.
pub(crate) fn over_tcp(control: &str, agent: &str, args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    let command =
        command.args(args).env_clear().env("FAIRMESH_CONTROL", control).env("FAIRMESH_AGENT", agent);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn identity_commands_say_when_mesh_has_no_trust_domain() {
    let mesh = Mesh::start();
    assert!(mesh.run(&["identity", "show"]).ok().contains("has no trust domain"));
    assert!(mesh.run(&["identity", "list"]).err.contains("has no trust domain"));
    let error = mesh.run(&["identity", "token", "web-1"]).fails(1);
    assert!(error.contains("--trust-domain"), "{error}");
}

fn shown_domain(mesh: &Mesh) -> serde_json::Value {
    mesh.run(&["identity", "show", "--json"]).json()["domain"].clone()
}

#[test]
fn new_store_has_trust_domain_and_older_store_only_on_request() {
    let mut new = Mesh::empty();
    new.arguments.clear();
    new.start_control();
    assert_eq!(shown_domain(&new), "mesh.local");
    let mut old = Mesh::start();
    old.apply("kind: Service\nname: shop/catalog\n").ok();
    old.stop_control("TERM");
    old.arguments.clear();
    old.start_control();
    assert!(old.run(&["identity", "show"]).ok().contains("has no trust domain"));
    old.stop_control("TERM");
    old.arguments = ["--trust-domain", "prod"].map(String::from).to_vec();
    old.start_control();
    assert_eq!(shown_domain(&old), "prod");
    old.stop_control("TERM");
    old.arguments = ["--trust-domain", "none"].map(String::from).to_vec();
    old.start_control();
    assert_eq!(shown_domain(&old), "prod", "there is no way back");
}

#[test]
fn local_processes_find_control_plane_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    let (data, state) = (format!("{home}/.local/state/fairmesh/control"), format!("{home}/agent"));
    let (socket, tcp) = (format!("unix:{home}/agent.sock"), format!("127.0.0.1:{}", free_port()));
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).env_clear().env("HOME", home).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let control = ["control", "--data-dir", &data, "--grpc", &tcp, "--admin", "127.0.0.1:0"];
    let _control = Killed(run(&control).spawn().unwrap());
    let agent = ["agent", "--name", "web-1", "--listen", &socket, "--state-dir", &state, "--admin", "none"];
    let _agent = Killed(run(&agent).spawn().unwrap());
    wait_until("the agent joins", || {
        let listed = run(&["identity", "list", "--json"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().contains("spiffe://mesh.local/fairmesh/agent/web-1")
    });
}

#[test]
fn server_started_without_agent_registers_once_it_has_identity() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let address = format!("unix:{}", mesh.path("web-1.sock").display());
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let arguments = ["register", "shop/catalog", "--region", "eu", "--agent", &address, "--address", &listen];
    let arguments = [&arguments[..], &["--program", &program]].concat();
    let log = mesh.path("register.log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command.args(&arguments).env_clear().stderr(std::fs::File::create(&log).unwrap());
    let said = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    let _server = Killed(command.spawn().unwrap());
    wait_until("it looks for the agent", || said("could not be registered"));
    let endpoints = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    assert_eq!(endpoints(), serde_json::json!([]));
    let (_agent, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("it is registered", || endpoints()[0]["mtls"] == true);
    wait_until("it is called by mutual TLS", || {
        mesh.run(&["call", "shop/catalog", "--agent", &address, "/items"]).code == Some(0)
    });
    assert!(!accepts_plaintext(&listen), "its callers have an identity");
}

#[test]
fn inbound_proxy_started_without_agent_registers_once_it_has_identity() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let address = format!("unix:{}", mesh.path("web-1.sock").display());
    let [inbound, listen, program] =
        [free_port(), free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let from_to = format!("shop/catalog@{inbound}={program}");
    let proxy = ["proxy", "--agent", &address, "--admin", "none", "--listen", &listen, "--inbound", &from_to];
    let _proxy = start(&proxy, None);
    wait_until("it serves in plaintext", || accepts_plaintext(&inbound));
    let endpoints = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    assert_eq!(endpoints(), serde_json::json!([]));
    let (_agent, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("it is registered", || endpoints()[0]["mtls"] == true);
    wait_until("it is called by mutual TLS", || {
        mesh.run(&["call", "shop/catalog", "--agent", &address, "/items"]).code == Some(0)
    });
    assert!(!accepts_plaintext(&inbound), "its callers have an identity");
}

/// Whether a server responds with 200 to a plaintext request.
fn accepts_plaintext(address: &str) -> bool {
    let url = format!("http://{address}/items");
    let curl =
        Command::new("curl").args(["-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", &url]).output();
    curl.unwrap().stdout == b"200"
}

/// Starts a server while its agent has no control plane; the server uses plaintext until a control plane with this
/// trust domain starts.
fn server_before_the_control_plane(domain: &str) -> (Mesh, Killed, Killed) {
    let mut mesh = Mesh::empty();
    mesh.arguments = ["--trust-domain", domain].map(String::from).to_vec();
    let (running, address) = agent(&mesh, "web-1", &mesh.address(), None);
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let log = mesh.path("register.log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command
        .args(["register", "shop/catalog", "--region", "eu", "--agent", &address, "--address", &listen])
        .args(["--program", &program])
        .env_clear()
        .stderr(std::fs::File::create(&log).unwrap());
    let said = move |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    let server = Killed(command.spawn().unwrap());
    wait_until("it waits for what the agent knows", || said("has reached no control plane yet"));
    mesh.start_control();
    // A registering server also declares its service, perhaps between the read and the write of this command.
    wait_until("the service is declared", || {
        mesh.apply("kind: Service\nname: shop/catalog\n").code == Some(0)
    });
    (mesh, running, server)
}

#[test]
fn server_started_before_agent_sync_registers_with_mutual_tls() {
    let (mesh, _agent, _server) = server_before_the_control_plane("prod");
    let endpoints = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    wait_until("it is registered", || endpoints()[0]["mtls"] == true);
}

#[test]
fn server_started_before_agent_sync_registers_in_plaintext_mesh() {
    let (mesh, _agent, _server) = server_before_the_control_plane("none");
    let endpoints = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    wait_until("it is registered", || {
        endpoints()[0]["instance"].is_string() && endpoints()[0]["mtls"] != true
    });
}

#[test]
fn drain_does_not_wait_for_stopped_program() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let log = mesh.path("register.log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    // Callers get six tenths of the deadline, less than an agent waits for a watcher to reconnect.
    command
        .args(["register", "shop/catalog", "--agent", &agent, "--address", &listen, "--program", &program])
        .args(["--grace", "0s", "--drain-deadline", "11s"])
        .env_clear()
        .stderr(std::fs::File::create(&log).unwrap());
    let mut server = Killed(command.spawn().unwrap());
    let call = || mesh.run(&["call", "shop/catalog", "--agent", &agent, "/items"]);
    wait_until("the service is called", || call().code == Some(0));
    call().ok();
    send(&server.0, "TERM");
    server.0.wait().unwrap();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("callers have moved") && !log.contains("not moved in time"), "{log}");
}

#[test]
fn call_does_not_wait_for_certificate_that_cannot_be_issued() {
    let (mut mesh, _) = domain();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    mesh.apply(
        "kind: Service\nname: shop/catalog\n---\nkind: Policy\nservice: shop/catalog\nmtls: permissive\n",
    )
    .ok();
    mesh.register("shop/catalog", "catalog-0", "eu", echo());
    let call = |mesh: &Mesh| mesh.run(&["call", "shop/catalog", "/items", "--agent", &agent]);
    wait_until("the agent has the records", || call(&mesh).code == Some(0));
    mesh.stop_control("TERM");
    // The agent must first have lost the control plane for longer than a restart takes.
    wait_until("calls take less than a program waits for a certificate, one like the other", || {
        (0..5).all(|_| {
            let began = Instant::now();
            call(&mesh).ok();
            began.elapsed() < Duration::from_secs(1)
        })
    });
}

#[test]
fn command_without_identity_names_unresponsive_agent() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hangs.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["get", "services"])
        .env_clear()
        .env("FAIRMESH_CONTROL", format!("127.0.0.1:{}", free_port()))
        .env("FAIRMESH_AGENT", format!("unix:{}", socket.display()))
        .output()
        .unwrap();
    let problem = String::from_utf8(output.stderr).unwrap();
    assert!(
        problem.contains(&format!("the agent at unix:{} has not responded yet", socket.display())),
        "{problem}"
    );
}

#[test]
fn program_starts_without_agent_from_saved_certificate() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let (mut running, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let (port, program) = (free_port(), format!("127.0.0.1:{}", echo()));
    let address = format!("127.0.0.1:{port}");
    let register =
        ["register", "shop/catalog", "--agent", &agent, "--address", &address, "--program", &program];
    let _register = start(&register, None);
    let call = |kept: Option<&str>, caller: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(["call", "shop/catalog", "--agent", &agent, "--as", caller]).env_clear();
        // Once the agent is gone, the command reads the agent's copy of the records on disk.
        command.env("FAIRMESH_STATE_DIR", mesh.path("web-1"));
        command.envs(kept.map(|folder| ("FAIRMESH_IDENTITY_DIR", mesh.path(folder))));
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    };
    wait_until("the catalog is called", || call(Some("kept"), "shop/web").code == Some(0));
    let mode = |file: &str| std::fs::metadata(mesh.path(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode("kept"), mode("kept/shop/web"), mode("kept/shop/web/identity.key")),
        (0o700, 0o700, 0o600)
    );

    // The agent writes its copy of the records when it stops.
    send(&running.0, "TERM");
    running.0.wait().unwrap();
    call(Some("kept"), "shop/web").ok();
    // Without a certificate, with that of another service, or with an unusable one, the caller has no identity and
    // calls nothing in plaintext.
    let fails = |run: Run| assert!(run.code != Some(0) && run.err.contains("no identity"), "{run:?}");
    fails(call(None, "shop/web"));
    fails(call(Some("kept"), "shop/api"));
    std::fs::write(mesh.path("kept/shop/web/identity.key"), "").unwrap();
    fails(call(Some("kept"), "shop/web"));
}

/// Requests a certificate from an agent; returns the reason if the agent refuses.
pub(crate) fn request_certificate(agent: &str, path: &str) -> String {
    let csr = PrivateKey::generate().unwrap().signing_request().unwrap();
    request_certificate_for(agent, path, csr)
}

/// Like [`request_certificate`], with a given signing request.
pub(crate) fn request_certificate_for(agent: &str, path: &str, csr: Vec<u8>) -> String {
    let request = IssueWorkloadRequest { path: path.into(), csr: csr.into() };
    runtime().block_on(async {
        let connected = handshake::connect(&Default::default(), &agent.parse().unwrap(), "test").await;
        let connection = match connected {
            Ok(connection) => connection,
            Err(error) => return error.to_string(),
        };
        let issued = connection.workload().issue_workload(request).await;
        match issued {
            // The agent is not a member, or does not know yet.
            Ok(issued) if issued.get_ref().chain.is_empty() => "no certificate".into(),
            Ok(_) => String::new(),
            Err(status) => status.message().into(),
        }
    })
}

/// Relays connections to `target` and records every byte; returns the port and the bytes.
fn sniffer(target: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<u8>>>::default());
    let kept = Arc::clone(&seen);
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(("127.0.0.1", target)).unwrap());
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                let kept = Arc::clone(&kept);
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = from.read(&mut buffer) {
                        kept.lock().unwrap().extend(&buffer[..read]);
                        if to.write_all(&buffer[..read]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (port, seen)
}

/// Response to a plaintext request.
pub(crate) fn plaintext(port: u16, host: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET /items HTTP/1.1\r\nhost: {host}\r\nx-secret: tea\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read);
    String::from_utf8_lossy(&read).into_owned()
}

/// Asserts that commands show the identity of a catalog endpoint.
fn shows_the_identity(mesh: &Mesh, instance: &str) {
    let id = "spiffe://prod/shop/catalog";
    let instance = format!("shop/catalog/{instance}");
    assert_eq!(mesh.run(&["describe", "endpoint", &instance, "--json"]).json()["identity"], id);
    let explain = ["explain", "shop/catalog", "--region", "eu"];
    assert_eq!(mesh.run(&[&explain[..], &["--json"]].concat()).json()["goesTo"]["identity"], id);
    assert!(mesh.run(&explain).ok().contains(&format!("proves   {id}, by mutual TLS")));
}

#[test]
fn services_of_strict_mesh_are_called_over_mutual_tls_only() {
    let (mesh, tcp) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let token = token(&mesh, &["web-1"]);
    let (_agent, agent) = agent(&mesh, "web-1", &tcp, Some(&token));
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let (port, program) = (free_port(), format!("127.0.0.1:{}", echo()));
    let address = format!("127.0.0.1:{port}");
    let register = ["register", "shop/catalog", "--agent", &agent, "--address", &address];
    let _register = start(&[&register[..], &["--program", &program]].concat(), None);
    let call =
        || -> Run { mesh.run(&["call", "shop/catalog", "--agent", &agent, "/items", "-H", "x-secret: tea"]) };
    wait_until("the service is called", || call().code == Some(0));
    assert!(call().ok().contains("x-secret: tea"));
    let endpoints = mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    assert_eq!(endpoints[0]["mtls"], true, "{endpoints}");
    shows_the_identity(&mesh, endpoints[0]["instance"].as_str().unwrap());
    assert!(!plaintext(port, "catalog.shop").contains("HTTP/1.1"), "plaintext is refused");

    let listen = free_port();
    let listener = format!("127.0.0.1:{listen}");
    let admin = format!("127.0.0.1:{}", free_port());
    let _proxy = start(&["proxy", "--agent", &agent, "--admin", &admin, "--listen", &listener], None);
    wait_until("the proxy calls the service", || {
        TcpStream::connect(("127.0.0.1", listen)).is_ok()
            && plaintext(listen, "catalog.shop").contains("x-secret: tea")
    });

    let status = mesh.run(&["proxy", "status", "--admin", &admin, "--json"]).json();
    assert_eq!(status["routing"]["identity"], "spiffe://prod/fairmesh/proxy/web-1.proxy");
    let text = mesh.run(&["proxy", "status", "--admin", &admin]).ok();
    assert!(text.contains("spiffe://prod/fairmesh/proxy/web-1.proxy"), "{text}");

    let (relay, seen) = sniffer(port);
    let relayed = Endpoint {
        mtls: true,
        instance: "relayed".into(),
        address: format!("127.0.0.1:{relay}"),
        location: Some(Location { region: "eu".into(), ..Location::default() }),
        state: State::Serving.into(),
        ..Endpoint::default()
    };
    mesh.announce("shop/catalog", relayed);
    wait_until("a call goes through the relay", || {
        call().ok();
        !seen.lock().unwrap().is_empty()
    });
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], 22, "a TLS handshake");
    for word in ["HTTP/1.1", "x-secret", "tea", "/items"] {
        assert!(!seen.windows(word.len()).any(|window| window == word.as_bytes()), "{word}");
    }
}

#[test]
fn certificate_authority_dated_in_future_is_replaced_before_first_join() {
    let (mut mesh, tcp) = domain();
    mesh.stop_control("TERM");
    std::fs::remove_dir_all(mesh.path("data")).unwrap();
    let (prod, later) =
        (TrustDomain::new("prod").unwrap(), SystemClock.now() + Duration::from_secs(10 * 86_400));
    std::fs::create_dir(mesh.path("data")).unwrap();
    let ahead = Authority::open(&mesh.path("data/ca"), &prod, later).unwrap().bundle();
    mesh.start_control();
    assert!(mesh.control_log().contains("the clock was set back"), "{}", mesh.control_log());
    let roots = std::fs::read_to_string(mesh.path("data/ca/bundle.pem")).unwrap();
    assert!(!roots.contains(&BASE64_STANDARD.encode(&ahead.roots[0])[..40]), "{roots}");
    let token = token(&mesh, &["web-1"]);
    let (_agent, address) = agent(&mesh, "web-1", &tcp, Some(&token));
    wait_until("an agent joins", || request_certificate(&address, "shop/cart").is_empty());
}
