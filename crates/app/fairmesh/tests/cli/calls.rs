//! `fairmesh call` against a server that knows nothing of Fairmesh.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    process::Command,
    thread,
};

use fairmesh_test_support::free_port;
use serde_json::json;

use super::{
    identities::{agent, domain, has_certificate, start},
    support::{Mesh, send, wait_until},
};

/// Starts a server that echoes each request, and responds to `/gone` with 404; returns its port.
pub(crate) fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(|| answer(stream.unwrap()));
        }
    });
    port
}

fn answer(stream: TcpStream) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut asked, mut length) = (String::new(), String::new(), 0);
        while reader.read_line(&mut line).unwrap() > 2 {
            let head = line.to_lowercase();
            if let Some(value) = head.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if asked.is_empty() || head.starts_with("x-") {
                asked.push_str(&line);
            }
            line.clear();
        }
        if asked.is_empty() {
            return;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        asked.push_str(&String::from_utf8(body).unwrap());
        let status = if asked.contains(" /gone ") { "404 Not Found" } else { "200 OK" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{asked}", asked.len());
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

#[test]
fn service_is_called_by_name_with_key_body_and_headers() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "us", echo());
    let agent = mesh.agent("us");
    let address = agent.address();
    let call = |args: &[&str]| mesh.run(&[&["call", "shop/catalog", "--agent", &address], args].concat());

    let plain = call(&["/items?page=2"]);
    assert!(plain.err.is_empty(), "{plain:?}");
    assert!(plain.ok().starts_with("GET /items?page=2 HTTP/1.1\r\n"));

    let full = call(&["/items", "-d", "three apples", "-H", "X-Tier: gold", "--key", "618", "-v"]);
    for part in ["POST /items ", "x-tier: gold\r\n", "x-fairmesh-key: 618\r\n", "three apples"] {
        assert!(full.out.contains(part), "{part} in {full:?}");
    }
    for part in ["* try 1: catalog-0 at 127.0.0.1:", " in us: 200 OK after ", "< HTTP/1.1 200 OK", "in all"] {
        assert!(full.err.contains(part), "{part} in {full:?}");
    }
    let gone = call(&["/gone", "-X", "put"]);
    assert!(gone.out.starts_with("PUT /gone"), "{gone:?}");
    assert!(gone.fails(1).contains("shop/catalog answered 404 Not Found"));
}

#[test]
fn unanswered_call_states_reason_and_tried_endpoints() {
    let mesh = Mesh::with_shop();
    let control = mesh.address();
    let call = |args: &[&str]| mesh.run(&[&["call"], args, &["--control", &control]].concat());

    assert!(call(&["shop/nothing"]).fails(1).contains("service shop/nothing is not declared"));
    assert!(call(&["shop/cart", "--key", "1"]).fails(2).contains("speaks gRPC"));
    assert!(call(&["shop/catalog"]).fails(1).contains("shop/catalog: "));

    // No server listens at this port.
    let port = free_port();
    mesh.register("shop/catalog", "catalog-0", "us", port);
    let refused = call(&["shop/catalog", "-v"]).fails(1);
    assert!(refused.contains("* try 1: catalog-0 at 127.0.0.1:"), "{refused}");
    assert!(refused.to_lowercase().contains("connection refused"), "every cause is said: {refused}");
}

#[test]
fn call_as_json_has_response_and_attempts() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "us", echo());
    let control = mesh.address();
    let call = |further: &[&str]| {
        mesh.run(&[&["call", "shop/catalog", "/x", "--control", &control], further].concat())
    };
    let ended = call(&["--json"]).json();
    assert_eq!(
        (&ended["status"], &ended["attempts"][0]["instance"]),
        (&json!(200), &json!("catalog-0")),
        "{ended}"
    );
    assert!(ended["body"].as_str().unwrap().starts_with("GET /x"), "{ended}");
    assert_eq!(ended["bodyBytes"], ended["body"].as_str().unwrap().len(), "{ended}");
    assert!(call(&[]).ok().starts_with("GET /x"), "the body alone");
}

#[test]
fn call_without_agent_names_one_that_runs() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/hello\n").ok();
    let none = format!("unix:{}", mesh.path("none.sock").display());
    let call = || mesh.run(&["call", "shop/hello", "--agent", &none]).fails(1);
    let complaint = call();
    assert!(
        complaint.contains("no agent responds at") && complaint.contains("--control ADDRESS"),
        "{complaint}"
    );
    // Without --agent, an agent listens at this socket name only.
    let socket = mesh.path("other/agent.sock");
    std::fs::create_dir(socket.parent().unwrap()).unwrap();
    let listen = format!("unix:{}", socket.display());
    let state = mesh.path("agent-state").display().to_string();
    let control = mesh.address();
    let agent = [
        "agent",
        "--control",
        &control,
        "--listen",
        &listen,
        "--state-dir",
        &state,
        "--name",
        "web-1",
        "--admin",
        "none",
    ];
    let _agent = start(&agent, None);
    wait_until("the agent listens", || socket.exists());
    wait_until("the hint names it", || call().contains("where an agent of this machine listens"));
}

#[test]
fn call_through_lookaside_uses_identity_of_local_agent() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/hello\n").ok();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let [front, at] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let program = format!("127.0.0.1:{}", echo());
    let register = ["register", "shop/hello", "--address", &front, "--program", &program, "--agent", &agent];
    let _server = start(&register, None);
    let _lookaside = start(&["lookaside", "--listen", &at, "--admin", "none", "--agent", &agent], None);
    mesh.run(&["wait", "shop/hello"]).ok();
    let call =
        |further: &[&str]| mesh.run(&[&["call", "shop/hello", "/x", "--lookaside", &at], further].concat());
    wait_until("the lookaside picks", || call(&["--agent", &agent]).out.starts_with("GET /x"));
    assert!(call(&[]).fails(1).contains("name the agent with --agent"));
}

#[test]
fn call_command_distinguishes_injected_fault_from_response() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "us", echo());
    let fault = |fault: &str| {
        mesh.apply(&format!(
            "{{kind: Policy, service: shop/catalog, routes: [{{name: checkout, fault: {fault}}}]}}"
        ))
        .ok();
        mesh.run(&["call", "shop/catalog", "-v", "--control", &mesh.address()])
    };
    let aborted = fault("{abort: {share: 100%, status: 503}}").fails(1);
    let says =
        "the mesh injected 503 Service Unavailable (route checkout of shop/catalog); no server was called";
    assert!(aborted.contains(says) && !aborted.contains("answered"), "{aborted}");
    let delayed = fault("{delay: {share: 100%, time: 1ms}}");
    assert!(delayed.err.contains("* the mesh injected a fault: delay (route checkout)"), "{delayed:?}");
    delayed.ok();
    let address = mesh.path("none.sock");
    let ports = ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent"];
    let agent = format!("unix:{}", address.display());
    let found = mesh.run(&[&["check"], &ports[..], &[&agent]].concat()).out;
    assert!(found.contains("route checkout of shop/catalog injects a delay of 1ms for 100%"), "{found}");
}

#[test]
fn drain_does_not_wait_for_finished_call_command() {
    let mesh = Mesh::with_shop();
    for instance in ["catalog-0", "catalog-1"] {
        mesh.register("shop/catalog", instance, "us", echo());
    }
    let agent = mesh.agent("us");
    mesh.run(&["call", "shop/catalog", "--agent", &agent.address()]).ok();
    mesh.run(&["call", "shop/catalog", "--control", &mesh.address()]).ok();
    // Shorter than the grace period after a lost connection.
    let drained = mesh.run(&["drain", "shop/catalog", "catalog-0", "--deadline", "6s"]);
    assert!(drained.ok().contains("every caller has moved"));
}

#[test]
fn call_command_says_when_it_uses_saved_copy() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "us", echo());
    let mut agent = mesh.agent("us");
    assert!(mesh.run(&["call", "shop/catalog", "--agent", &agent.address()]).err.is_empty());
    send(&agent.child, "TERM");
    agent.child.wait().unwrap();
    fs::create_dir_all(mesh.path("state/fairmesh")).unwrap();
    symlink(mesh.path("agent-us"), mesh.path("state/fairmesh/agent")).unwrap();
    let mut call = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    call.args(["call", "shop/catalog", "--agent", "unix:/nowhere/agent.sock"]);
    let called = call.env_clear().env("XDG_STATE_HOME", mesh.path("state")).output().unwrap();
    let warning = String::from_utf8(called.stderr).unwrap();
    assert!(called.status.success(), "{warning}");
    assert!(
        warning.contains("warning: this call was routed by the agent's copy of the records"),
        "{warning}"
    );
    assert!(warning.contains("unix:/nowhere/agent.sock"), "{warning}");
}
