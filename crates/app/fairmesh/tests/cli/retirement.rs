//! Retirement of roots by an operator.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_identity::Authority;

use super::{
    identities::{agent, domain, has_certificate, over_tcp, request_certificate, token},
    support::{Mesh, wait_until},
};

const HOUR: Duration = Duration::from_secs(3600);

/// Digests of the roots, the newest last.
fn roots(mesh: &Mesh) -> Vec<String> {
    let shown = mesh.run(&["identity", "show", "--json"]).json();
    shown["roots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|root| root["sha256"].as_str().unwrap().to_owned())
        .collect()
}

/// A control plane that created a new root two days ago and has signed with it since.
fn rotated_before() -> Mesh {
    #[allow(clippy::disallowed_methods)]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut mesh = Mesh::empty();
    fs::create_dir(mesh.path("data")).unwrap();
    let made = Authority::open(&mesh.path("data/ca"), &"prod".parse().unwrap(), now - 60 * HOUR).unwrap();
    made.begin_root(now - 48 * HOUR).unwrap();
    made.rotate_issuer(now - 36 * HOUR).unwrap();
    mesh.arguments = ["--trust-domain", "prod"].map(String::from).to_vec();
    mesh.start_control();
    mesh
}

#[test]
fn retired_root_certificate_stays_retired_after_restart() {
    let mut mesh = rotated_before();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let both = roots(&mesh);
    let before = fs::read(mesh.path("data/ca/bundle.pem")).unwrap();
    let kept = || fs::read_to_string(mesh.path("web-1/identity/bundle.pem")).unwrap();
    assert_eq!((both.len(), kept().matches("BEGIN CERTIFICATE").count()), (2, 2));
    let retire = |args: &[&str]| mesh.run(&[&["identity", "retire"], args].concat());
    let refused = retire(&[&both[1]]).fails(1);
    assert!(
        refused.contains("is that of the intermediate") && refused.contains("rotate --root"),
        "{refused}"
    );
    let refused = retire(&["00000000"]).fails(1);
    assert!(refused.contains("no root") && refused.contains("identity show"), "{refused}");
    retire(&["12"]).fails(2);
    // Another control plane may have been active until now.
    let refused = retire(&[&both[0]]).fails(1);
    assert!(refused.contains("expires by") && !refused.contains("shown by"), "{refused}");
    let tried = retire(&[&both[0], "--force", "--dry-run", "--json"]).json();
    assert_eq!(tried["root"], both[0]);
    assert_eq!((tried["dryRun"].as_bool(), tried["roots"].as_array().unwrap().len()), (Some(true), 1));
    assert_eq!(roots(&mesh), both, "nothing has changed");
    let text = retire(&[&both[0][..8], "--force", "--message", "two years old"]).ok();
    assert!(text.contains(&format!("the root {} is retired", both[0])), "{text}");
    assert_eq!(roots(&mesh), both[1..]);
    wait_until("the agent trusts one root", || kept().matches("BEGIN CERTIFICATE").count() == 1);
    let logged = mesh.run(&["audit", "--key", "/g/identity/bundle", "--json"]).out;
    assert!(logged.contains("two years old"), "{logged}");
    // The next start does not record the root again, even if the file still has it, as at another control plane.
    drop(agent);
    mesh.stop_control("TERM");
    fs::write(mesh.path("data/ca/bundle.pem"), before).unwrap();
    mesh.start_control();
    assert_eq!(roots(&mesh), both[1..]);
    let shown = mesh.run(&["identity", "show", "--json"]).json();
    assert_eq!(shown["retired"], serde_json::json!([both[0]]));
}

#[test]
fn root_certificate_is_not_retired_while_its_certificates_are_in_use() {
    let (mesh, tcp) = domain();
    let made = token(&mesh, &["web-1"]);
    let (_agent, agent) = agent(&mesh, "web-1", &tcp, Some(&made));
    wait_until("the agent issues certificates", || request_certificate(&agent, "shop/cart").is_empty());
    let old = roots(&mesh).swap_remove(0);
    let retire = |args: &[&str]| mesh.run(&[&["identity", "retire", &old], args].concat());
    // Members may not retire roots over TCP.
    let refused = over_tcp(&tcp, &agent, &["identity", "retire", &old, "--force"]).fails(1);
    assert!(refused.contains("only the user of the control plane"), "{refused}");
    mesh.run(&["identity", "rotate", "--root"]).ok();
    for args in [&[][..], &["--force"], &["--dry-run"]] {
        let refused = retire(args).fails(1);
        assert!(
            refused.contains("is that of the intermediate") && refused.contains("identity rotate"),
            "{refused}"
        );
    }
    mesh.run(&["identity", "rotate", "--force"]).ok();
    for args in [&[][..], &["--dry-run"]] {
        let refused = retire(args).fails(1);
        for part in ["expires by", "shown by spiffe://prod/fairmesh/agent/web-1", "--force"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
    assert_eq!(roots(&mesh).len(), 2);
    // As if the root's key was stolen.
    retire(&["--force"]).ok();
    assert!(!roots(&mesh).contains(&old));
    let again = retire(&[]).fails(1);
    assert!(again.contains("is retired already"), "{again}");
    let state = mesh.path("web-1").display().to_string();
    let checked = mesh.run(&["security", "check", "--state-dir", &state]).out;
    assert!(
        checked.contains("the certificate of spiffe://prod/fairmesh/agent/web-1 is refused"),
        "{checked}"
    );
    let file = fs::read(mesh.path("data/ca/bundle.pem")).unwrap();
    assert_eq!(String::from_utf8(file).unwrap().matches("BEGIN CERTIFICATE").count(), 1);
}
