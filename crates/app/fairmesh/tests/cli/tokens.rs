//! Users with tokens of an identity provider.

use std::{fs, process::Command};

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64},
};
use fairmesh_identity::{Clock as _, SystemClock};
use fairmesh_test_support::free_port;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::{
    identities::{agent, has_certificate},
    support::{Mesh, Run, wait_until},
};

pub(crate) const ISSUER: &str = "https://idp.example";

const OPERATORS: &str = "\
kind: RoleBinding
name: shop-operators
role: operator
tenants: [shop]
subjects: ['group:shop-oncall']
---
kind: RoleBinding
name: shop-readers
role: viewer
tenants: [shop]
subjects: ['group:shop-oncall']
";

/// A signing key of an identity provider.
pub(crate) struct Key {
    id: &'static str,
    pair: KeyPair,
}

impl Key {
    pub(crate) fn new(id: &'static str) -> Self {
        Self { id, pair: KeyPair::generate_for(&PKCS_ED25519).unwrap() }
    }

    /// The key set (JWKS) that the provider publishes.
    pub(crate) fn jwks(&self) -> String {
        let x = BASE64.encode(self.pair.public_key_raw());
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.id, "x": x }] })
            .to_string()
    }

    /// A token of alice that expires in `seconds` seconds.
    pub(crate) fn token(&self, seconds: i64) -> String {
        let claims = json!({
            "iss": ISSUER, "aud": ["other", "fairmesh"], "sub": "alice", "groups": ["shop-oncall"],
            "exp": i64::try_from(SystemClock.now().as_secs()).unwrap() + seconds,
        });
        let part = |part: &Value| BASE64.encode(part.to_string());
        let message = format!("{}.{}", part(&json!({ "alg": "EdDSA", "kid": self.id })), part(&claims));
        let signature = BASE64.encode(self.pair.sign(message.as_bytes()).unwrap());
        format!("{message}.{signature}")
    }
}

/// A control plane that accepts the key's tokens, and an agent with whose identity commands reach it.
struct Rig {
    mesh: Mesh,
    tcp: String,
    agent: String,
    _agent: super::identities::Killed,
}

impl Rig {
    fn start(key: &Key) -> Self {
        let tcp = format!("127.0.0.1:{}", free_port());
        let mut mesh = Mesh::empty();
        let jwks = mesh.file("jwks.json", &key.jwks());
        let issuer = ["--oidc-issuer-url", ISSUER, "--oidc-client-id", "fairmesh", "--oidc-jwks", &jwks];
        let arguments = [&["--trust-domain", "prod", "--grpc", &tcp][..], &issuer].concat();
        mesh.arguments = arguments.into_iter().map(String::from).collect();
        mesh.start_control();
        let (running, agent) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        Self { mesh, tcp, agent, _agent: running }
    }

    fn command(&self, args: &[&str], input: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).env_clear().env("FAIRMESH_CONTROL", &self.tcp).env("FAIRMESH_AGENT", &self.agent);
        command.stdin(fs::File::open(self.mesh.file("input", input)).unwrap());
        command
    }

    /// Runs a command over TCP as the user of a token.
    fn run(&self, token: Option<&str>, args: &[&str], input: &str) -> Run {
        let mut command = self.command(args, input);
        if let Some(token) = token {
            command.env("FAIRMESH_TOKEN", token);
        }
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let run = Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        assert!(
            token.is_none_or(|token| !format!("{}{}", run.out, run.err).contains(token)),
            "it shows the token"
        );
        run
    }

    /// Writes the policy of a service.
    fn apply(&self, token: Option<&str>, service: &str) -> Run {
        let policy = format!("kind: Policy\nservice: {service}\ntimeout: 5s\n");
        self.run(token, &["apply", "-f", "-"], &policy)
    }
}

/// What a user of one tenant may not see is a note of `check`, and a warning of `security check`.
fn checks_stay_within_roles(rig: &Rig, token: &str) {
    rig.mesh.apply("kind: Service\nname: shop/cart\n---\nkind: Service\nname: bank/vault\n").ok();
    let pages = ["check", "--control-admin", "none", "--agent-admin", "none", "--admin", "none"];
    let checked = rig.run(Some(token), &pages, "").out;
    for part in ["agent responds", "shop/cart has no endpoint", "no more than the records of tenant shop"] {
        assert!(checked.contains(part), "{part}: {checked}");
    }
    assert!(checked.lines().any(|line| line.starts_with("note     records ")), "{checked}");
    assert!(!checked.contains("bank/vault") && !checked.contains("os error"), "{checked}");
    assert_eq!(
        checked.matches("shop/cart has no endpoint").count(),
        1,
        "two bindings give this tenant: {checked}"
    );
    assert_eq!(checked.matches("examined the records").count(), 1, "{checked}");
    // Open access in records that the user may not read is not excluded.
    let checked = rig.run(Some(token), &["security", "check"], "");
    let unread = checked.out.lines().find(|line| line.contains("not all records of the mesh were examined"));
    assert!(unread.is_some_and(|line| line.starts_with("warning  mesh ")), "{checked:?}");
    assert_eq!(checked.code, Some(1));
    let explained = rig.run(Some(token), &["explain", "shop/cart", "--region", "us", "--zone", "us-1"], "");
    assert!(explained.out.contains("shop/cart") && explained.err.contains("your roles"), "{explained:?}");
}

#[test]
fn user_token_grants_roles_of_its_groups() {
    let key = Key::new("one");
    let rig = Rig::start(&key);
    let (mesh, token) = (&rig.mesh, key.token(600));
    let apply = |token: Option<&str>, service: &str| rig.apply(token, service);
    mesh.apply(OPERATORS).ok();
    let refused = apply(None, "shop/cart").fails(1);
    assert!(refused.contains("spiffe://prod/fairmesh/operator/web-1.uid-"), "{refused}");
    // Reads, watches and writes in the user's own tenant, and in no other.
    apply(Some(&token), "shop/cart").ok();
    let refused = apply(Some(&token), "bank/vault").fails(1);
    assert!(
        refused.contains("https://idp.example#alice (spiffe://prod/fairmesh/operator/web-1.uid-"),
        "{refused}"
    );
    rig.run(Some(&token), &["get", "policies", "--tenant", "shop"], "").ok();
    rig.run(Some(&token), &["get", "policies"], "").fails(1);
    rig.run(None, &["get", "policies", "--tenant", "shop"], "").fails(1);

    checks_stay_within_roles(&rig, &token);

    let whoami = rig.run(Some(&token), &["identity", "whoami", "--json"], "").json();
    assert_eq!(whoami["user"]["name"], "alice");
    assert_eq!(whoami["user"]["groups"], json!(["shop-oncall"]));
    assert_eq!((&whoami["admin"], &whoami["roles"][0]["binding"]), (&json!(false), &json!("shop-operators")));
    let shown = rig.run(Some(&token), &["identity", "whoami"], "").ok();
    for part in ["https://idp.example#alice", "shop-operators  operator  shop  group:shop-oncall"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(rig.run(None, &["identity", "whoami"], "").ok().contains("no role binding names you"));

    // The log of writes names the user.
    let logged = mesh.run(&["audit", "--key", "/policies/", "--json"]).json();
    let who = logged[0]["who"].as_str().unwrap();
    assert!(
        who.starts_with("https://idp.example#alice (spiffe://prod/fairmesh/operator/web-1.uid-"),
        "{logged}"
    );
    assert_eq!(logged.as_array().unwrap().len(), 1, "{logged}");

    // The history of a record names the user too.
    apply(Some(&token), "shop/cart").ok();
    rig.run(Some(&token), &["delete", "policy", "shop/cart"], "").ok();
    let history = mesh.run(&["history", "policy", "shop/cart", "--json"]).json().to_string();
    assert!(history.contains("https://idp.example#alice"), "{history}");
}

#[test]
fn user_token_is_read_from_file_or_environment() {
    let (old, new) = (Key::new("2026-a"), Key::new("2026-b"));
    let rig = Rig::start(&old);
    let (mesh, token) = (&rig.mesh, old.token(600));
    let apply = |token: Option<&str>, service: &str| rig.apply(token, service);
    mesh.apply(OPERATORS).ok();
    apply(Some(&token), "shop/cart").ok();
    // The file takes precedence over the environment.
    let file = mesh.file("token", &format!("{token}\n"));
    let whoami = ["identity", "whoami", "--token-file", &file];
    assert!(rig.run(Some("x.y.z"), &whoami, "").ok().contains("alice"));
    let wrong = ["identity", "whoami", "--token-file", &mesh.file("empty", " \n")];
    assert!(rig.run(None, &wrong, "").fails(2).contains("the token is empty"));
    let expired = apply(Some(&old.token(-120)), "shop/cart").fails(1);
    assert!(expired.contains("its claim 'exp' says that it expired"), "{expired}");
    let expired = rig.run(Some(&old.token(-120)), &["get", "policies", "--tenant", "shop"], "").fails(1);
    assert!(expired.contains("its claim 'exp' says that it expired"), "{expired}");
    // Agents do not forward tokens, and commands send them none.
    let to_agent = rig.run(Some(&token), &["identity", "whoami", "--control", &rig.agent], "").fails(2);
    assert!(to_agent.contains("is no control plane"), "{to_agent}");

    // The issuer replaces its key.
    let refused = apply(Some(&new.token(600)), "shop/cart").fails(1);
    assert!(refused.contains("'kid'"), "{refused}");
    mesh.file("jwks.json", &new.jwks());
    apply(Some(&new.token(600)), "shop/web").ok();
    let refused = apply(Some(&token), "shop/cart").fails(1);
    assert!(refused.contains("'kid'"), "{refused}");
    for (name, text) in [
        ("the log of the control plane", mesh.control_log()),
        ("the log of writes", fs::read_to_string(mesh.path("data/audit.log")).unwrap()),
    ] {
        assert!(
            !text.contains(&token) && !text.contains(token.split('.').nth(2).unwrap()),
            "{name} has a token"
        );
    }
}

#[test]
fn control_plane_reports_missing_issuer_and_unusable_keys() {
    let mesh = Mesh::start();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).env_clear().env("FAIRMESH_CONTROL", mesh.address()).env("FAIRMESH_TOKEN", "a.b.c");
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let refused = run(&["get", "services"]);
    assert!(
        refused.contains("takes no tokens of users") && refused.contains("--oidc-issuer-url"),
        "{refused}"
    );
    let data = mesh.path("other").display().to_string();
    let start = |jwks: &str| {
        let issuer = ["--oidc-issuer-url", ISSUER, "--oidc-client-id", "fairmesh", "--oidc-jwks", jwks];
        run(&[
            &["control", "--data-dir", &data, "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"][..],
            &issuer,
        ]
        .concat())
    };
    let refused = start(&mesh.file("jwks.json", "{}"));
    assert!(refused.contains("--oidc-jwks") && refused.contains("is no JWKS"), "{refused}");
    let refused = start("http://idp.example/keys");
    assert!(refused.contains("plaintext HTTP"), "{refused}");
    let refused = run(&["control", "--oidc-issuer-url", ISSUER]);
    assert!(refused.contains("--oidc-client-id"), "{refused}");
}

#[test]
fn user_without_agent_logs_in_over_tcp_with_mesh_roots() {
    let key = Key::new("one");
    let rig = Rig::start(&key);
    let mesh = &rig.mesh;
    mesh.apply(OPERATORS).ok();
    let bundle = mesh.path("data/ca/bundle.pem").display().to_string();
    let run = |bundle: &str, token: Option<&str>, args: &[&str], input: &str| {
        let mut command = rig.command(&[args, &["--trust-bundle", bundle]].concat(), input);
        command.env_remove("FAIRMESH_AGENT");
        if let Some(token) = token {
            command.env("FAIRMESH_TOKEN", token);
        }
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    };
    let token = key.token(600);
    let policy = "kind: Policy\nservice: shop/cart\ntimeout: 5s\n";
    run(&bundle, Some(&token), &["apply", "-f", "-"], policy).ok();
    let whoami = run(&bundle, Some(&token), &["identity", "whoami", "--json"], "").json();
    assert_eq!(whoami["user"]["name"], "alice", "{whoami}");
    // By reads and watches.
    let listed = run(&bundle, Some(&token), &["get", "policies", "--tenant", "shop"], "").ok();
    assert!(listed.contains("shop/cart"), "{listed}");
    let logged = mesh.run(&["audit", "--key", "/policies/", "--json"]).json();
    assert!(logged[0]["who"].as_str().unwrap().starts_with("https://idp.example#alice"), "{logged}");

    // Only the token counts, for every method, including those open to members.
    let show = ["identity", "show"];
    assert!(run(&bundle, None, &show, "").fails(1).contains("shows no certificate"));
    assert!(run(&bundle, Some("a.b.c"), &show, "").fails(1).contains("it is no JWT"));
    let expired = run(&bundle, Some(&key.token(-120)), &["get", "policies", "--tenant", "shop"], "").fails(1);
    assert!(expired.contains("its claim 'exp' says that it expired"), "{expired}");
    run(&bundle, Some(&token), &show, "").ok();
    let refused = run(&bundle, Some(&token), &["identity", "token", "web-9"], "").fails(1);
    assert!(refused.contains("only the user of the control plane"), "{refused}");
    // The token is sent only to a control plane of the mesh.
    let other = super::identities::domain().0;
    let other = other.path("data/ca/bundle.pem").display().to_string();
    assert!(run(&other, Some(&token), &["get", "policies"], "").fails(1).contains("cannot reach"));
    let missing = run("/nonexistent/bundle.pem", Some(&token), &["get", "policies"], "").fails(2);
    assert!(missing.contains("--trust-bundle") && missing.contains("does not exist"), "{missing}");
}

#[test]
fn login_hints_at_roots_only_if_plaintext_is_refused() {
    let key = Key::new("one");
    let rig = Rig::start(&key);
    let token = key.token(600);
    let complaint_at = |control: &str| {
        let mut command = rig.command(&["get", "policies", "--tenant", "shop"], "");
        command.env_remove("FAIRMESH_AGENT").env("FAIRMESH_CONTROL", control).env("FAIRMESH_TOKEN", &token);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        // Lines are wrapped.
        let words = String::from_utf8(output.stderr).unwrap();
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let told = complaint_at(&rig.tcp);
    assert!(told.contains("in plaintext: ") && told.contains("--trust-bundle"), "{told}");
    let told = complaint_at(&format!("127.0.0.1:{}", free_port()));
    assert!(told.contains("Connection refused") && !told.contains("--trust-bundle"), "{told}");
    let told = complaint_at("control.invalid:7400");
    assert!(told.contains("no host is known by the name") && !told.contains("--trust-bundle"), "{told}");
}

#[test]
fn control_plane_pages_accept_tokens_only_over_tls() {
    let key = Key::new("one");
    let rig = Rig::start(&key);
    let mesh = &rig.mesh;
    mesh.apply(OPERATORS).ok();
    let address = http_address(mesh);
    let token = key.token(600);
    let body = r#"{"service":"shop/cart","instances":["one"]}"#;
    let request = |token: &str| {
        format!(
            "POST /v1/drain HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    // As curl does with `--cacert`: by host name.
    let secured = |text: &str| over_tls(mesh, &address, text);
    let drained = secured(&request(&token));
    assert!(drained.starts_with("HTTP/1.1 2") || drained.starts_with("HTTP/1.1 404"), "{drained}");
    assert!(!drained.contains("role bindings"), "the check lets it pass: {drained}");
    let refused = secured(&request(&key.token(-120)));
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("'exp'"), "{refused}");
    let other = secured(&request(&token).replace("shop/cart", "bank/cart"));
    assert!(other.contains("role bindings"), "of another tenant: {other}");
    let mut plain = std::net::TcpStream::connect(&address).unwrap();
    let refused = exchange(&mut plain, &request(&token));
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("use https"), "{refused}");
    // Monitoring still works in plaintext without a token.
    let page = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut plain = std::net::TcpStream::connect(&address).unwrap();
    assert!(exchange(&mut plain, page).ends_with("ok\n"));
    assert!(secured(page).ends_with("ok\n"));
}

#[test]
fn control_plane_pages_show_given_certificate_in_place_of_one_of_the_mesh() {
    let mut mesh = Mesh::empty();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let given = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let write = |name: &str, label: &str, der: &[u8]| {
        let base64 = BASE64_STANDARD.encode(der);
        mesh.file(name, &format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n"))
    };
    let certificate = write("pages.pem", "CERTIFICATE", given.der());
    let key_file = write("pages.key", "PRIVATE KEY", key.serialized_der());
    let arguments = ["--trust-domain", "prod", "--admin-tls-cert", &certificate, "--admin-tls-key"];
    mesh.arguments = arguments.map(String::from).to_vec();
    mesh.arguments.push(certificate.clone());
    let refused = mesh.control_command().output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("pages.pem: "), "a file without a key: {said}");
    mesh.arguments.pop();
    mesh.arguments.push(key_file);
    mesh.start_control();
    let page = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let address = mesh.pages();
    assert!(trusting(given.der().clone(), &address, page).ends_with("ok\n"));
    // A file that is being replaced neither fails what the authority does nor takes the certificate away.
    fs::write(&certificate, "").unwrap();
    mesh.run(&["identity", "rotate", "--force"]).ok();
    assert!(trusting(given.der().clone(), &address, page).ends_with("ok\n"));
    let log = mesh.control_log();
    assert!(log.contains("the one before stays in use") && log.contains("pages.pem"), "{log}");
}

/// HTTP address of the control plane, from its log.
pub(crate) fn http_address(mesh: &Mesh) -> String {
    let log = mesh.control_log();
    let line = log.lines().find(|line| line.contains("serving HTTP")).unwrap();
    let address = line.split("address=").nth(1).unwrap();
    address.split_whitespace().next().unwrap().to_owned()
}

fn exchange(stream: &mut (impl std::io::Read + std::io::Write), request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read);
    String::from_utf8_lossy(&read).into_owned()
}

/// Makes a request over TLS to a server that must prove `localhost` by the mesh's roots.
pub(crate) fn over_tls(mesh: &Mesh, address: &str, request: &str) -> String {
    let pem = fs::read(mesh.path("data/ca/bundle.pem")).unwrap();
    trusting(CertificateDer::from_pem_slice(&pem).unwrap(), address, request)
}

/// Makes a request over TLS to a server that must prove `localhost` by this root.
fn trusting(root: CertificateDer<'_>, address: &str, request: &str) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(root.into_owned()).unwrap();
    let config = ClientConfig::builder_with_provider(default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let session = ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap();
    let socket = std::net::TcpStream::connect(address).unwrap();
    exchange(&mut StreamOwned::new(session, socket), request)
}
