//! Roles, and the log of writes.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    process::{Command, Stdio},
};

use fairmesh_test_support::free_port;
use serde_json::{Value, json};

use super::{
    calls::echo,
    identities::{agent, domain, has_certificate, over_tcp, start, token},
    support::{Mesh, fairmesh, wait_until},
};

const OPERATORS: &str = "\
kind: RoleBinding
name: shop-operators
role: operator
tenants: [shop]
subjects: ['fairmesh/operator/web-1.*', 'group:sre']
";

fn apply(mesh: &Mesh, yaml: &str) {
    mesh.apply(yaml).ok();
}

#[test]
fn role_bindings_are_listed_compared_and_deleted() {
    let mesh = Mesh::start();
    apply(&mesh, OPERATORS);
    let listed = mesh.run(&["get", "roles"]).ok();
    assert!(listed.contains("operator  shop  fairmesh/operator/web-1.*, group:sre"), "{listed}");
    let other = OPERATORS.replace("[shop]", "[bank]");
    let difference = fairmesh(&mesh.address(), &["diff", "-f", "-"], &other);
    assert_eq!(difference.code, Some(3), "{difference:?}");
    assert_eq!(fairmesh(&mesh.address(), &["diff", "-f", "-"], OPERATORS).code, Some(0));
    let deleted = mesh.run(&["delete", "role", "shop-operators"]).ok();
    assert!(deleted.contains("fairmesh audit --key /g/roles/shop-operators"), "{deleted}");
    assert_eq!(mesh.run(&["get", "roles", "--json"]).json(), json!([]));
    for wrong in ["role: owner", "role: registrar", "role: admin\ntenants: [shop]"] {
        let yaml = format!("kind: RoleBinding\nname: x\n{wrong}\nsubjects: [anonymous]\n");
        assert_eq!(mesh.apply(&yaml).code, Some(2), "{wrong}");
    }
    apply(&mesh, "kind: Authorization\ndefault: deny\n");
    mesh.run(&["delete", "authorization"]).ok();
    assert_eq!(mesh.run(&["get", "authorization", "--json"]).json()[0]["default"], "allow");
}

#[test]
fn remote_operator_needs_role_binding() {
    let (mesh, tcp) = domain();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    apply(&mesh, "kind: Service\nname: shop/cart\n---\nkind: Service\nname: bank/vault\n");
    let refused = over_tcp(&tcp, &agent, &["get", "services"]).fails(1);
    assert!(refused.contains("a role binding can permit it"), "{refused}");
    let ports = ["--control-admin", "none", "--agent-admin", "none", "--admin", "none"];
    let check = over_tcp(&tcp, &agent, &[&["check", "--json"], &ports[..]].concat());
    assert!(check.out.contains("the records were not examined"), "{check:?}");
    assert!(check.out.contains("\"cgroup\""), "what is local is examined all the same: {check:?}");
    apply(&mesh, OPERATORS);
    // Only other roles may list all tenants; the error says what to do.
    for command in [&["get", "services"][..], &["get", "endpoints", "--watch"]] {
        let refused = over_tcp(&tcp, &agent, command).fails(1);
        assert!(refused.contains("--tenant") && refused.contains("identity whoami"), "{refused}");
    }
    let listed = over_tcp(&tcp, &agent, &["get", "services", "--tenant", "shop"]).ok();
    assert!(listed.contains("shop/cart"), "{listed}");
    over_tcp(&tcp, &agent, &["delete", "service", "shop/cart"]).ok();
    for (refused, other) in [("bank/vault", "bank/absent")].into_iter().flat_map(|(a, b)| {
        let run = |name: &str| over_tcp(&tcp, &agent, &["delete", "service", name, "--force"]).fails(1);
        [(run(a), run(b))]
    }) {
        assert_eq!(refused.replace("vault", "absent"), other);
    }
    let refused = over_tcp(&tcp, &agent, &["audit"]).fails(1);
    assert!(refused.contains("needs the role admin") && !refused.contains("no write is logged"), "{refused}");
}

#[test]
fn writes_are_audited_and_log_tampering_is_detected() {
    let (mut mesh, _) = domain();
    apply(&mesh, "kind: Policy\nservice: shop/cart\ntimeout: 5s\n");
    apply(&mesh, "kind: Policy\nservice: shop/cart\ntimeout: 6s\n");
    let logged = mesh.run(&["audit", "--key", "/policies/", "--json"]).json();
    let own = format!("local uid {}", rustix::process::geteuid().as_raw());
    assert_eq!((&logged[0]["who"], &logged[0]["before"]), (&json!(own), &json!(null)), "{logged}");
    assert_eq!(logged[1]["before"]["timeout"], "5s", "{logged}");
    assert_eq!(logged[1]["after"]["timeout"], "6s", "{logged}");
    let shown = mesh.run(&["audit"]);
    assert!(
        shown.err.contains("the chain is whole") && shown.err.contains("from its beginning"),
        "{shown:?}"
    );
    assert!(
        shown.out.contains("the authority of this control plane has other keys"),
        "whole lines: {}",
        shown.out
    );
    assert!(shown.out.contains(r#"{"timeout":"5s"}"#) && !shown.out.contains("base64"), "{}", shown.out);
    let mut follows = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    follows.args(["audit", "--follow", "--log", "security", "--key", "/policies/"]);
    follows.env_clear().env("FAIRMESH_CONTROL", mesh.address());
    let mut follows = follows.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let (first, second) = (next(), next());
    assert!(second["entry"]["number"].as_u64() > first["entry"]["number"].as_u64(), "{first} {second}");
    assert_eq!((&first["log"], first["hash"].is_string()), (&json!("security"), true));
    apply(&mesh, "kind: Policy\nservice: shop/cart\ntimeout: 7s\n");
    let third = next();
    assert_eq!(third["entry"]["who"], json!(own));
    let decoded = &third["decoded"][0];
    assert_eq!((&decoded["before"]["timeout"], &decoded["after"]["timeout"]), (&json!("6s"), &json!("7s")));
    assert!(decoded["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{third}");
    assert!(third["entry"]["changes"][0]["after"]["base64"].is_string(), "hashed bytes stay: {third}");
    follows.kill().unwrap();
    follows.wait().unwrap();
    mesh.stop_control("TERM");
    let path = mesh.path("data/audit.log");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen(&own, "local uid 4242", 1)).unwrap();
    mesh.start_control();
    let broken = mesh.run(&["audit"]).fails(1);
    assert!(broken.contains("the log of writes was changed"), "{broken}");
}

#[test]
fn agent_behind_replica_registers_under_own_name() {
    let (mesh, tcp) = domain();
    apply(&mesh, "kind: Service\nname: shop/files\n");
    let (_first, first) = agent(&mesh, "rib-1", &tcp, Some(&token(&mesh, &["rib-1"])));
    wait_until("the agent joins", || has_certificate(&mesh, "rib-1"));
    let (port, state) = (free_port(), mesh.path("replica").display().to_string());
    let listen = format!("127.0.0.1:{port}");
    let replica =
        ["rib", "replica", "--name", "r", "--admin", "none", "--listen", &listen, "--agent", &first];
    let more = ["--upstream", &tcp, "--state-dir", &state, "--region", "eu", "--require-identity"];
    let _replica = start(&[&replica[..], &more].concat(), None);
    wait_until("the replica listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let (_second, second) =
        agent(&mesh, "web-1", &listen, Some(&token(&mesh, &["web-1", "--tenant", "shop"])));
    wait_until("the agent joins through the replica", || has_certificate(&mesh, "web-1"));
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let register =
        ["register", "shop/files", "--agent", &second, "--address", &listen, "--program", &program];
    let _register = start(&register, None);
    wait_until("the service is called", || {
        mesh.run(&["call", "shop/files", "/", "--agent", &second]).code == Some(0)
    });
    let logged = mesh.run(&["audit", "--key", "/endpoints/files/", "--json"]).json();
    let who = logged[0]["who"].as_str().unwrap();
    assert!(who.starts_with("spiffe://prod/fairmesh/agent/web-1 for local uid"), "{who}");
    // For the agent, records of other tenants do not exist.
    apply(&mesh, "kind: Authorization\ndefault: deny\n---\nkind: Service\nname: bank/vault\n");
    for name in ["bank/vault", "bank/absent"] {
        wait_until("the replica refuses it, once it has the record", || {
            let refused = mesh.run(&["call", name, "/", "--agent", &second]).fails(1);
            refused.contains("there is nothing at /t/bank/")
        });
    }
}
