//! Service authorization with real processes: a proxy and `register` in front of a program decide as `vectors/` says.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
};

use fairmesh_test_support::free_port;
use serde_json::{Value, json};

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, start},
    support::{Mesh, Run, fairmesh, wait_until},
};

pub(crate) struct Service {
    pub(crate) mesh: Mesh,
    agent: String,
    /// Admin address of the proxy.
    admin: String,
    _processes: Vec<Killed>,
}

impl Service {
    /// Starts `shop/cart` behind a proxy and `shop/bytes` behind `register`.
    pub(crate) fn start() -> Self {
        let (mesh, _) = domain();
        mesh.apply("kind: Service\nname: shop/cart\n---\nkind: Service\nname: shop/bytes\n").ok();
        let (process, agent) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        let [inbound, listen, admin, bytes] = [(); 4].map(|()| format!("127.0.0.1:{}", free_port()));
        let [program, other] = [echo(), echo()].map(|port| format!("127.0.0.1:{port}"));
        let inbound = format!("shop/cart@{inbound}={program}");
        let proxy =
            ["proxy", "--agent", &agent, "--admin", &admin, "--listen", &listen, "--inbound", &inbound];
        let register =
            ["register", "shop/bytes", "--agent", &agent, "--address", &bytes, "--program", &other];
        let log = std::fs::File::create(mesh.path("register.log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        let register = command.args(register).env_clear().stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let processes = vec![process, start(&proxy, None), Killed(register)];
        let this = Self { mesh, agent, admin, _processes: processes };
        for service in ["shop/cart", "shop/bytes"] {
            wait_until("the service is called", || this.call(service, "shop/web", &["/"]).code == Some(0));
        }
        this
    }

    pub(crate) fn call(&self, service: &str, caller: &str, more: &[&str]) -> Run {
        self.mesh.run(&[&["call", service, "--agent", &self.agent, "--as", caller, "-v"], more].concat())
    }

    pub(crate) fn apply(&self, documents: &str) {
        self.mesh.apply(documents).ok();
    }

    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let of = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next()?.ends_with(name)).then(|| value.parse::<u64>().unwrap())
        };
        samples.filter_map(of).sum()
    }
}

/// Cases of `vectors/authorization.json` whose callers can get an identity from this test's agents.
fn vectors() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors/authorization.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    vectors["rules"].as_array().unwrap().clone()
}

fn documents(case: &Value, service: &str) -> String {
    let mut policy = case["policy"].clone();
    (policy["kind"], policy["service"]) = (json!("Policy"), json!(service));
    let default = json!({"kind": "Authorization", "default": case["default"]});
    format!("{policy}\n---\n{default}\n")
}

/// Calls of a case that `fairmesh call` can make: it resolves `..` in paths and writes methods in upper case.
fn calls(case: &Value) -> impl Iterator<Item = (&Value, &str)> {
    let decisions = case["decisions"].as_array().unwrap().iter();
    decisions.filter_map(|decision| {
        let [caller, method, path] = [0, 1, 2].map(|i| decision["call"][i].as_str());
        let is_sent_as_written =
            !path?.contains("..") && !method?.contains(|letter: char| letter.is_ascii_lowercase());
        is_sent_as_written.then_some((decision, caller?.strip_prefix("spiffe://prod/")?))
    })
}

#[test]
fn server_authorization_matches_vectors_for_each_caller() {
    let service = Service::start();
    for case in vectors() {
        service.apply(&documents(&case, "shop/cart"));
        service.apply(&documents(&case, "shop/bytes"));
        for (decision, caller) in calls(&case) {
            let [method, path] = [1, 2].map(|i| decision["call"][i].as_str().unwrap());
            let made = |name: &str| service.call(name, caller, &["-X", method, path]);
            let is_as = |run: Run, permitted: &Value| match permitted.as_bool().unwrap() {
                true => run.code == Some(0),
                false => run.code == Some(1) && run.err.contains("403") && !run.err.contains("* try 2"),
            };
            wait_until("the proxy decides by the policy", || {
                is_as(made("shop/cart"), &decision["permitted"])
            });
            let connection = &decision["connectionPermitted"];
            wait_until("register decides by the policy", || is_as(made("shop/bytes"), connection));
            let explained = service.mesh.run(&[
                "explain",
                "shop/cart",
                "--region",
                "eu",
                "--as",
                caller,
                "--method",
                method,
                "--path",
                path,
                "--json",
            ]);
            let explained: Value = serde_json::from_str(&explained.out).unwrap();
            assert_eq!(explained["authorization"]["allowed"], decision["allowed"], "{decision}");
            assert_eq!(
                explained["authorization"]["rule"],
                decision["by"].get("rule").cloned().unwrap_or_default()
            );
        }
    }
    assert!(service.metric("inbound_requests_unauthorized_total") > 0);
    assert!(service.metric("inbound_requests_audited_total") > 0);
    // `register` does not count refused connections; its log names the callers that it refuses or would refuse.
    let log = std::fs::read_to_string(service.mesh.path("register.log")).unwrap();
    let said = log.lines().filter(|line| line.contains("a connection is ")).collect::<Vec<_>>();
    let is_audit = |line: &&&str| line.contains("audit");
    assert!(said.iter().any(|line| line.contains("caller=\"spiffe://prod/")), "{log}");
    assert!(!log.contains("method=\"\""), "a connection has no method: {log}");
    assert!(said.iter().any(|line| is_audit(&line)) && said.iter().any(|line| !is_audit(&line)), "{log}");
}

#[test]
fn caller_header_is_trusted_only_from_intermediaries_named_in_policy() {
    let service = Service::start();
    service.apply(
        "kind: Policy\nservice: shop/cart\nauthorization:\n  rules: [{name: web, from: [shop/web]}]\n  \
         intermediaries: [shop/gateway]\n",
    );
    let stated = |caller: &str, stated: &str| {
        let header = format!("x-fairmesh-caller: {stated}");
        service.call("shop/cart", caller, &["-H", &header, "/"])
    };
    wait_until("the policy is in force", || service.call("shop/cart", "shop/batch", &["/"]).code == Some(1));
    assert_eq!(stated("shop/batch", "spiffe://prod/shop/web").code, Some(1), "not an intermediary");
    let made = stated("shop/gateway", "spiffe://prod/shop/web").ok();
    assert!(made.contains("x-fairmesh-caller: spiffe://prod/shop/web"), "the program learns it: {made}");
    assert_eq!(stated("shop/gateway", "spiffe://prod/shop/batch").code, Some(1));
    assert_eq!(stated("shop/gateway", "spiffe://other/shop/web").code, Some(1), "of another domain");
    assert_eq!(stated("shop/gateway", "shop/web").code, Some(1), "no id");
    let own = stated("shop/web", "spiffe://prod/shop/batch").ok();
    assert!(
        own.contains("x-fairmesh-caller: spiffe://prod/shop/web"),
        "the program learns who called: {own}"
    );
    assert!(!own.contains("shop/batch"), "a statement of a caller that is no intermediary is removed: {own}");
    let refused = fairmesh(
        &service.mesh.address(),
        &["explain", "shop/cart", "--region", "eu", "--as", "shop/batch"],
        "",
    );
    assert!(refused.out.contains("refused: no rule of the policy allows it"), "{refused:?}");
}

#[test]
fn explain_says_which_allowed_calls_register_refuses() {
    let mesh = Mesh::start();
    mesh.apply(
        "kind: Service\nname: shop/cart\n---\nkind: Policy\nservice: shop/cart\nauthorization:\n  \
         rules: [{name: reads, from: [shop/web], methods: [GET]}, {name: all, from: [shop/batch]}]\n",
    )
    .ok();
    mesh.register("shop/cart", "cart-0", "eu", 7000);
    let explain = |caller: &str, more: &[&str]| {
        mesh.run(&[&["explain", "shop/cart", "--region", "eu", "--as", caller], more].concat())
    };
    let refusal = "a server behind 'fairmesh register' refuses it";
    let (web, batch) = (explain("shop/web", &[]).ok(), explain("shop/batch", &[]).ok());
    assert!(web.contains("allowed: rule 'reads'") && web.contains(refusal), "{web}");
    assert!(batch.contains("allowed: rule 'all'") && !batch.contains(refusal), "{batch}");
    for (caller, by_register) in [("shop/web", false), ("shop/batch", true)] {
        let authorization = &explain(caller, &["--json"]).json()["authorization"];
        assert_eq!(
            (&authorization["allowed"], &authorization["allowedByRegister"]),
            (&true.into(), &by_register.into()),
            "{authorization}"
        );
    }
}
