//! Agents and programs that join with a token.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    process::{Command, Stdio},
};

use fairmesh_test_support::free_port;

use super::{
    calls::echo,
    identities::{
        Killed, agent, domain, has_certificate, joined, over_tcp, request_certificate,
        request_certificate_for, start, token,
    },
    support::{Mesh, Run, send, wait_until},
};

#[test]
fn join_token_lets_only_its_agent_join_and_only_once() {
    let (mesh, tcp) = domain();
    let token = token(&mesh, &["web-1", "--tenant", "shop"]);
    // An agent with another name, and an agent without a token.
    let (_other, _) = agent(&mesh, "web-2", &tcp, Some(&token));
    let (_stranger, _) = agent(&mesh, "web-3", &tcp, None);
    let (_first, _) = agent(&mesh, "web-1", &tcp, Some(&token));
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    assert_eq!(joined(&mesh), ["spiffe://prod/fairmesh/agent/web-1"]);
    // An agent with the same name on another machine.
    let (_second, _) = agent(&mesh, "twice", &tcp, Some(&token));
    assert!(!["web-2", "web-3", "twice"].into_iter().any(|name| has_certificate(&mesh, name)));
    assert_eq!(mesh.run(&["identity", "show", "--json"]).json()["openTokens"], 0);
    // The token's tenants limit the agent.
    let agent = format!("unix:{}", mesh.path("web-1.sock").display());
    let refused = request_certificate(&agent, "bank/vault");
    assert!(refused.contains("may not have a certificate for bank/vault"), "{refused}");
    wait_until("it issues certificates", || request_certificate(&agent, "shop/cart").is_empty());
    // Programs send an empty request to learn whether they need a key.
    let refused = request_certificate_for(&agent, "shop/cart", Vec::new());
    assert_eq!(refused, "the signing request is missing");
}

/// Makes a call without an agent: with a token if given, and with the folder in which the certificate is kept.
fn call_alone(mesh: &Mesh, control: &str, token: Option<&str>, (kept, caller): (&str, &[&str])) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command.args(["call", "shop/catalog", "--control", control]).args(caller).env_clear();
    command.env("FAIRMESH_IDENTITY_DIR", mesh.path(kept));
    command.envs(token.map(|token| ("FAIRMESH_JOIN_TOKEN", token)));
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn program_without_agent_joins_mesh_with_token_for_its_service() {
    let (mesh, tcp) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let policy =
        "kind: Policy\nservice: shop/catalog\nauthorization: {rules: [{name: web, from: [shop/web]}]}\n";
    mesh.apply(policy).ok();
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let begin = |token: Option<&str>, log: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command
            .args(["register", "shop/catalog", "--control", &tcp, "--region", "eu", "--address", &listen])
            .args(["--program", &program])
            .env_clear()
            .env("FAIRMESH_IDENTITY_DIR", mesh.path("kept"))
            .envs(token.map(|token| ("FAIRMESH_JOIN_TOKEN", token)))
            .stderr(fs::File::create(mesh.path(log)).unwrap());
        Killed(command.spawn().unwrap())
    };
    let endpoints = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    let is_registered = || endpoints()[0]["mtls"] == true && endpoints()[0]["state"] == "serving";
    let server = begin(Some(&token(&mesh, &["--service", "shop/catalog"])), "register.log");
    wait_until("it is registered with mutual TLS", is_registered);
    let listed = mesh.run(&["identity", "list", "--json"]).json();
    assert_eq!(listed[0]["id"], "spiffe://prod/shop/catalog", "{listed}");
    assert!(listed[0]["connected"].as_u64() > Some(0), "{listed}");
    let mode = fs::metadata(mesh.path("kept/shop/catalog/identity.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // The caller has no agent either; its second call uses the saved certificate.
    let web = token(&mesh, &["--service", "shop/web"]);
    let call = |token: Option<&str>| call_alone(&mesh, &tcp, token, ("caller", &["--as", "shop/web"]));
    call(Some(&web)).ok();
    call(None).ok();

    // A restart needs no token, whether or not the first process still runs.
    drop(server);
    wait_until("its lease ends", || !is_registered());
    let _server = begin(None, "again.log");
    wait_until("it is registered again", is_registered);
    call(None).ok();
    fs::write(mesh.path("caller/shop/web/identity.key"), "").unwrap();
    let error = call(None).fails(1);
    assert!(error.contains("fairmesh identity token --service shop/web"), "{error}");
}

#[test]
fn program_without_agent_registers_through_replica_with_own_identity() {
    let (mesh, tcp) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let (_beside, beside) = agent(&mesh, "web-1", &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let [replica, listen, program] =
        [free_port(), free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let state = mesh.path("replica").to_str().unwrap().to_owned();
    let replicating = ["rib", "replica", "--name", "eu", "--admin", "none", "--require-identity"];
    let addresses = ["--upstream", &tcp, "--agent", &beside, "--listen", &replica, "--state-dir", &state];
    let _replica = start(&[&replicating[..], &addresses].concat(), None);
    let token = token(&mesh, &["--service", "shop/catalog"]);
    let registering = ["register", "shop/catalog", "--control", &replica, "--region", "eu"];
    let registering = [&registering[..], &["--address", &listen, "--program", &program]].concat();
    let _server = start(&registering, Some(&token));
    let endpoints = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    wait_until("it is registered", || endpoints()[0]["state"] == "serving");
}

#[test]
fn program_revoked_while_stopped_rejoins_with_new_token() {
    let (mesh, tcp) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let begin = |token: Option<&str>, log: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        let register =
            ["register", "shop/catalog", "--control", &tcp, "--region", "eu", "--address", &listen];
        command.args(register).args(["--program", &program]).env_clear();
        command.env("FAIRMESH_IDENTITY_DIR", mesh.path("kept"));
        command.envs(token.map(|token| ("FAIRMESH_JOIN_TOKEN", token)));
        Killed(command.stderr(fs::File::create(mesh.path(log)).unwrap()).spawn().unwrap())
    };
    let is_registered =
        || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json()[0]["state"] == "serving";
    let used = token(&mesh, &["--service", "shop/catalog"]);
    let server = begin(Some(&used), "first.log");
    wait_until("it is registered", is_registered);
    // With a valid certificate, a restart uses no token, whether new or used.
    drop(server);
    let server = begin(Some(&token(&mesh, &["--service", "shop/catalog"])), "again.log");
    wait_until("it is registered again", is_registered);
    assert_eq!(open_tokens(&mesh), 1);
    drop(server);
    mesh.run(&["identity", "revoke", "shop/catalog", "--issued-before", "now"]).ok();
    wait_until("its lease ends", || !is_registered());
    let _server = begin(Some(&token(&mesh, &["--service", "shop/catalog"])), "new.log");
    wait_until("it is registered with a new certificate", is_registered);
    assert_eq!(open_tokens(&mesh), 1);
}

#[test]
fn program_that_missed_root_rotation_rejoins_with_new_token() {
    let (mesh, tcp) = domain();
    // The service does not exist; the program joins anyway.
    let call = |token: Option<&str>| call_alone(&mesh, &tcp, token, ("caller", &["--as", "shop/web"]));
    call(Some(&token(&mesh, &["--service", "shop/web"])));
    let kept = || fs::read(mesh.path("caller/shop/web/identity.key")).unwrap();
    let before = kept();
    mesh.run(&["identity", "rotate", "--root"]).ok();
    mesh.run(&["identity", "rotate", "--force"]).ok();
    call(None);
    assert_eq!(kept(), before);
    call(Some(&token(&mesh, &["--service", "shop/web"])));
    assert!(kept() != before && open_tokens(&mesh) == 0);
    // With the new certificate, a token stays unused again.
    let unused = token(&mesh, &["--service", "shop/web"]);
    call(Some(&unused));
    assert_eq!(open_tokens(&mesh), 1);
}

#[test]
fn service_token_is_refused_to_other_services_and_when_used_again() {
    let (mesh, tcp) = domain();
    let fails = |token: &str, caller: &[&str], why: &str| {
        let run = call_alone(&mesh, &tcp, Some(token), ("kept", caller));
        assert!(run.code != Some(0) && run.err.contains(why), "{why}: {run:?}");
    };
    let (web, as_web) = (token(&mesh, &["--service", "shop/web"]), ["--as", "shop/web"]);
    // The service does not exist; the program joins anyway.
    call_alone(&mesh, &tcp, Some(&web), ("first", &as_web));
    assert!(mesh.path("first/shop/web/identity.key").exists());
    fails(&web, &as_web, "this program has no certificate: the token was used already");
    let batch = token(&mesh, &["--service", "shop/batch"]);
    fails(&batch, &as_web, "for the service shop/batch and no other");
    fails(&batch, &[], "names none as its identity");
    // As in the shell of an agent, which has the agent's token.
    fails(&batch, &[], "unset");
    fails("fairmesh-join-x", &as_web, "is no join token");
    fails(&token(&mesh, &["web-1"]), &as_web, "the token is for an agent");
    let short = token(&mesh, &["--service", "shop/web", "--ttl", "1s"]);
    wait_until("its time ends", || {
        mesh.run(&["identity", "show", "--json"]).json()["openTokens"] == serde_json::json!(2)
    });
    fails(&short, &as_web, "has expired");
    // An agent cannot join with this token either.
    let (_agent, _) = agent(&mesh, "web-9", &tcp, Some(&batch));
    let error = mesh.run(&["identity", "token", "web-1", "--service", "shop/web"]).fails(2);
    assert!(error.contains("cannot be used with"), "{error}");
    let error = mesh.run(&["identity", "token", "web-1", "--ttl", "0s"]).fails(1);
    assert!(error.contains("give at least 1s"), "{error}");
    assert!(!has_certificate(&mesh, "web-9") && joined(&mesh).is_empty());
}

#[test]
fn revoked_service_cannot_join_and_keeps_its_token() {
    let (mesh, tcp) = domain();
    for service in ["shop/web", "shop/api", "shop/batch"] {
        let token = token(&mesh, &["--service", service]);
        mesh.run(&["identity", "revoke", service]).ok();
        let refused = call_alone(&mesh, &tcp, Some(&token), (service, &["--as", service]));
        assert!(refused.err.contains("is revoked"), "{refused:?}");
    }
    assert_eq!(open_tokens(&mesh), 3);
}

#[test]
fn proxy_without_agent_serves_and_calls_with_one_token() {
    let (mesh, tcp) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n---\nkind: Service\nname: shop/cart\n").ok();
    mesh.apply(
        "kind: Policy\nservice: shop/catalog\nauthorization: {rules: [{name: cart, from: [shop/cart]}]}\n",
    )
    .ok();
    let [catalog, inbound, listen, program] =
        [free_port(), free_port(), free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let begin = |service: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).args(["--control", &tcp, "--region", "eu"]).env_clear();
        command.env("FAIRMESH_IDENTITY_DIR", mesh.path(&service.replace('/', "-")));
        command.env("FAIRMESH_JOIN_TOKEN", token(&mesh, &["--service", service]));
        Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let register = ["register", "shop/catalog", "--address", &catalog, "--program", &program];
    let _server = begin("shop/catalog", &register);
    let from_to = format!("shop/cart@{inbound}={program}");
    let proxy = ["proxy", "--cores", "1", "--admin", "none", "--listen", &listen, "--inbound", &from_to];
    let _proxy = begin("shop/cart", &proxy);
    let is_called = || {
        let Ok(mut stream) = TcpStream::connect(&listen) else { return false };
        stream.write_all(b"GET / HTTP/1.1\r\nhost: catalog.shop\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 200")
    };
    wait_until("the proxy calls as its service", is_called);
    let endpoints = || mesh.run(&["get", "endpoints", "shop/cart", "--json"]).json();
    wait_until("its service is registered", || endpoints()[0]["mtls"] == true);
}

/// An agent with a log that the test reads.
struct Logged {
    running: Killed,
    address: String,
}

impl Logged {
    /// Starts the agent, with the state directory of an earlier one if present.
    fn start(mesh: &Mesh, upstream: &str, token: Option<&str>) -> Self {
        Self::start_in("eu", mesh, (upstream, token))
    }

    fn start_in(region: &str, mesh: &Mesh, (upstream, token): (&str, Option<&str>)) -> Self {
        let address = format!("unix:{}", mesh.path("web-1.sock").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command
            .args(["agent", "--name", "web-1", "--region", region, "--control", upstream, "--admin", "none"])
            .args(["--listen", &address, "--state-dir", mesh.path("web-1").to_str().unwrap()])
            .env_clear()
            .envs(token.map(|token| ("FAIRMESH_JOIN_TOKEN", token)))
            .stderr(fs::File::create(mesh.path("web-1.log")).unwrap());
        let running = Killed(command.spawn().unwrap());
        wait_until("the agent listens", || UnixStream::connect(mesh.path("web-1.sock")).is_ok());
        Self { running, address }
    }

    /// Stops the agent after it has saved its state.
    fn stop(mut self) {
        send(&self.running.0, "TERM");
        self.running.0.wait().unwrap();
    }

    /// Whether the agent issues certificates to programs.
    fn issues(&self) -> bool {
        request_certificate(&self.address, "shop/cart").is_empty()
    }
}

fn said(mesh: &Mesh, what: &str) -> bool {
    fs::read_to_string(mesh.path("web-1.log")).unwrap().contains(what)
}

fn open_tokens(mesh: &Mesh) -> serde_json::Value {
    mesh.run(&["identity", "show", "--json"]).json()["openTokens"].clone()
}

/// Starts and stops an agent that joined over TCP; returns its token.
fn joined_agent(mesh: &Mesh, tcp: &str) -> String {
    let first = token(mesh, &["web-1"]);
    let agent = Logged::start(mesh, tcp, Some(&first));
    wait_until("the agent issues certificates", || agent.issues());
    agent.stop();
    first
}

#[test]
fn agent_with_valid_certificate_uses_no_token() {
    let (mesh, tcp) = domain();
    let used = joined_agent(&mesh, &tcp);
    let key = || fs::read(mesh.path("web-1/identity/identity.key")).unwrap();
    let (before, unused) = (key(), token(&mesh, &["web-1"]));
    for token in [&used, &unused] {
        let agent = Logged::start(&mesh, &tcp, Some(token));
        wait_until("it says so", || said(&mesh, "the join token is not used"));
        wait_until("it issues certificates", || agent.issues());
        agent.stop();
    }
    assert_eq!((key() == before, open_tokens(&mesh)), (true, 1.into()));
}

#[test]
fn agent_revoked_while_stopped_rejoins_with_new_token() {
    let (mesh, tcp) = domain();
    let used = joined_agent(&mesh, &tcp);
    mesh.run(&["identity", "revoke", "fairmesh/agent/web-1", "--issued-before", "now"]).ok();
    // The used token does not work.
    let agent = Logged::start(&mesh, &tcp, Some(&used));
    wait_until("it says what to do", || said(&mesh, "the token was used already"));
    assert!(said(&mesh, "make a new one with `fairmesh identity token`") && !agent.issues());
    agent.stop();
    let agent = Logged::start(&mesh, &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent issues certificates", || agent.issues());
    assert_eq!(open_tokens(&mesh), 0);
    agent.stop();
    let agent = Logged::start(&mesh, &tcp, None);
    wait_until("it has kept its certificate", || agent.issues());
}

#[test]
fn running_revoked_agent_rejoins_with_new_token() {
    let (mesh, tcp) = domain();
    let agent = Logged::start(&mesh, &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent issues certificates", || agent.issues());
    mesh.run(&["identity", "revoke", "fairmesh/agent/web-1", "--issued-before", "now"]).ok();
    wait_until("it issues none", || !agent.issues());
    agent.stop();
    let agent = Logged::start(&mesh, &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent issues certificates again", || agent.issues());
}

#[test]
fn agent_that_missed_root_rotation_rejoins_by_token_or_local_socket() {
    let (mesh, tcp) = domain();
    joined_agent(&mesh, &tcp);
    let rotate = || {
        mesh.run(&["identity", "rotate", "--root"]).ok();
        mesh.run(&["identity", "rotate", "--force"]).ok();
    };
    rotate();
    let agent = Logged::start(&mesh, &tcp, None);
    wait_until("it does not know the control plane", || said(&mesh, "was not issued by the trust domain"));
    assert!(!agent.issues());
    agent.stop();
    let agent = Logged::start(&mesh, &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent issues certificates", || agent.issues());
    agent.stop();

    rotate();
    let agent = Logged::start(&mesh, &mesh.address(), None);
    wait_until("the agent issues certificates once more", || agent.issues());
    assert!(said(&mesh, "it has joined anew"));
}

#[test]
fn agent_without_token_reports_missing_token() {
    let (mesh, tcp) = domain();
    let _agent = Logged::start(&mesh, &tcp, None);
    wait_until("it says what to do", || said(&mesh, "make a token with `fairmesh identity token web-1`"));
    assert!(said(&mesh, "this agent has no certificate"));
}

/// The region in which the only agent joined.
fn joined_region(mesh: &Mesh) -> serde_json::Value {
    mesh.run(&["identity", "list", "--json"]).json()[0]["region"].clone()
}

#[test]
fn agent_restarted_in_another_region_warns_until_new_token_moves_it() {
    let (mesh, tcp) = domain();
    joined_agent(&mesh, &tcp);
    let agent = Logged::start_in("us", &mesh, (&tcp, None));
    wait_until("it warns", || said(&mesh, "it joined in another region"));
    assert!(said(&mesh, "recorded=eu") && said(&mesh, "`fairmesh identity token web-1 --region us`"));
    let check = ["check", "--control-admin", "none", "--agent-admin", "none", "--admin", "none"];
    let checked = mesh.run(&check);
    assert!(checked.out.contains("web-1 joined in the region eu, and runs in us"), "{checked:?}");
    agent.stop();
    let agent = Logged::start_in("us", &mesh, (&tcp, Some(&token(&mesh, &["web-1", "--region", "us"]))));
    wait_until("it joins anew", || said(&mesh, "it has joined anew"));
    assert_eq!(joined_region(&mesh), "us");
    let checked = mesh.run(&check);
    assert!(!checked.out.contains("joined in the region"), "{checked:?}");
    wait_until("it issues certificates", || agent.issues());
}

#[test]
fn second_agent_of_same_name_in_another_region_joins_only_after_end_of_first() {
    let (mesh, tcp) = domain();
    let first = Logged::start(&mesh, &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent issues certificates", || first.issues());
    let listen = format!("unix:{}", mesh.path("second.sock").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command
        .args(["agent", "--name", "web-1", "--region", "us", "--control", &tcp, "--admin", "none"])
        .args(["--listen", &listen, "--state-dir", mesh.path("second").to_str().unwrap()])
        .env_clear()
        .env("FAIRMESH_JOIN_TOKEN", token(&mesh, &["web-1"]))
        .stderr(fs::File::create(mesh.path("second.log")).unwrap());
    let _second = Killed(command.spawn().unwrap());
    let refusal = "an agent web-1 runs in the region eu";
    wait_until("it is refused", || fs::read_to_string(mesh.path("second.log")).unwrap().contains(refusal));
    assert_eq!((joined_region(&mesh), open_tokens(&mesh)), ("eu".into(), 1.into()));
    first.stop();
    wait_until("it joins", || has_certificate(&mesh, "second"));
    assert_eq!(joined_region(&mesh), "us");
}

#[test]
fn command_with_identity_says_that_control_plane_speaks_plaintext() {
    let (mesh, tcp) = domain();
    let (_joined, joined) = agent(&mesh, "web-1", &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    wait_until("it issues identities", || over_tcp(&tcp, &joined, &["identity", "show"]).code == Some(0));
    let plaintext = format!("127.0.0.1:{}", free_port());
    let mut other = Mesh::empty();
    other.arguments = ["--grpc", &plaintext, "--trust-domain", "none"].map(String::from).to_vec();
    other.start_control();
    let error = over_tcp(&plaintext, &joined, &["get", "services"]).fails(1);
    assert!(error.contains("it speaks plaintext") && error.contains("of trust domain prod"), "{error}");
    assert!(error.contains("FAIRMESH_AGENT") && !error.contains("InvalidContentType"), "{error}");
}
