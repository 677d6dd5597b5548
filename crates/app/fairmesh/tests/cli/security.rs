//! Findings of `fairmesh security check`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use fairmesh_test_support::free_port;

use super::{
    check::found,
    identities::{agent, domain, has_certificate, start},
    support::{Mesh, Run, wait_until},
};

/// Records that leave access open.
const OPEN: &str = "\
kind: Service
name: shop/cart
---
kind: Policy
service: shop/cart
mtls: permissive
---
kind: Policy
service: shop/web
authorization: {mode: audit, rules: [{name: all, from: ['*']}]}
---
kind: RoleBinding
name: everybody
role: admin
subjects: [anonymous]
";
/// The same records, with access closed.
const CLOSED: &str = "\
kind: Policy
service: shop/cart
authorization: {rules: [{name: web, from: [shop/web]}]}
---
kind: Policy
service: shop/web
authorization: {rules: [{name: all, from: ['*']}]}
---
kind: RoleBinding
name: everybody
role: viewer
subjects: ['group:sre']
---
kind: Authorization
default: deny
";

fn check(mesh: &Mesh) -> Run {
    let data = mesh.path("data");
    mesh.run(&["security", "check", "--json", "--state-dir", data.to_str().unwrap()])
}

/// Findings except those about listeners, since other tests have listeners on this machine.
fn found_of(run: &Run) -> Vec<String> {
    found(run).into_iter().filter(|check| !check.starts_with("listeners.")).collect()
}

#[test]
fn security_check_reports_open_access_until_it_is_closed() {
    let (mesh, _) = domain();
    mesh.apply(OPEN).ok();
    mesh.register("shop/cart", "cart-0", "eu", 7000);
    let key = mesh.path("data/ca/issuer.key");
    let store = mesh.path("data/rib.redb");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(&store, fs::Permissions::from_mode(0o644)).unwrap();
    // Created as by a normal start, so that no other user can block the next start.
    let lock = mesh.path("data/rib.redb.lock");
    for (file, mode) in
        [(&lock, 0o600), (&mesh.path("control.sock.lock"), 0o600), (&mesh.path("data"), 0o700)]
    {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, mode, "{}", file.display());
    }
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    let open = check(&mesh);
    let expected = [
        "mtls.endpoints",
        "mtls.permissive",
        "authorization",
        "authorization.audit",
        "roles",
        "keys.permissions",
        "stores.permissions",
        "locks.permissions",
    ];
    assert_eq!((found_of(&open), open.code), (expected.map(str::to_owned).to_vec(), Some(1)));
    let text = mesh.run(&["security", "check", "--state-dir", mesh.path("data").to_str().unwrap()]).out;
    for said in ["shop/cart (1 of 1)", "chmod 600", "binding everybody gives everyone", "errors: 2"] {
        assert!(text.contains(said), "{said}: {text}");
    }

    for file in [&key, &store, &lock] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    mesh.apply(CLOSED).ok();
    let closed = check(&mesh);
    assert_eq!(found_of(&closed), ["mtls.endpoints"], "the endpoint still speaks plaintext");
}

#[test]
fn security_check_reports_missing_trust_domain() {
    let run = check(&Mesh::start());
    assert_eq!((found_of(&run), run.code), (vec!["trustDomain".to_owned()], Some(1)));
}

#[test]
fn security_check_finds_plaintext_listeners_and_unrenewed_agents() {
    let (mesh, _) = domain();
    let (process, _) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let (pages, behind) = (free_port(), free_port());
    let (admin, listen) = (format!("0.0.0.0:{pages}"), format!("127.0.0.1:{behind}"));
    let control = mesh.address();
    let proxy = start(&["proxy", "--control", &control, "--admin", &admin, "--listen", &listen], None);
    // gRPC listeners answer no HTTP/1.1 request.
    let (plain, picks) = (Mesh::start(), free_port());
    let (control, at) = (plain.address(), format!("0.0.0.0:{picks}"));
    let lookaside = start(&["lookaside", "--control", &control, "--listen", &at, "--admin", "none"], None);
    let text = || {
        let state = mesh.path("web-1");
        mesh.run(&["security", "check", "--state-dir", state.to_str().unwrap()]).out
    };
    let said = format!("proxy' responds in plaintext at 0.0.0.0:{pages}");
    wait_until("the pages are found", || text().contains(&said));
    let said = format!("lookaside' responds in plaintext at 0.0.0.0:{picks}");
    wait_until("the lookaside is found", || text().contains(&said));
    let text = text();
    assert!(!text.contains(&listen), "loopback is not: {text}");
    assert!(
        text.contains("the certificate of spiffe://prod/fairmesh/agent/web-1 is valid for 23 h"),
        "{text}"
    );
    drop((process, proxy, lookaside));
    // The key belongs to nothing any more.
    let (_other, roots) = other_bundle();
    fs::write(mesh.path("web-1/identity/bundle.pem"), fs::read(roots).unwrap()).unwrap();
    let state = mesh.path("web-1");
    let broken = mesh.run(&["security", "check", "--state-dir", state.to_str().unwrap()]).out;
    assert!(broken.contains("cannot be used") && broken.contains("identity token"), "{broken}");
}

/// Starts another mesh; returns it with a file of its roots.
fn other_bundle() -> (Mesh, std::path::PathBuf) {
    let (mesh, _) = domain();
    let path = mesh.path("data/ca/bundle.pem");
    (mesh, path)
}

#[test]
fn security_check_finds_roots_not_trusted_everywhere() {
    let (mesh, _) = domain();
    let (_agent, _) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let text = || mesh.run(&["security", "check"]).out;
    assert!(!text().contains("root.agents"), "with one root, all trust it");
    mesh.run(&["identity", "rotate", "--root"]).ok();
    wait_until("the agent trusts it", || {
        text().contains("the 1 agents that say so here trust the newest root")
    });
    let text = text();
    assert!(text.contains("programs that have not renewed their certificates since the root"), "{text}");
    assert!(!text.contains("root.unknown"), "{text}");
}
