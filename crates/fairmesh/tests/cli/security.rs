//! What `fairmesh security check` finds.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::{
    check::found,
    identities::domain,
    support::{Mesh, Run},
};

/// Records that leave something open.
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
/// The same without.
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

#[test]
fn what_is_open_is_found_until_it_is_closed() {
    let (mesh, _) = domain();
    mesh.apply(OPEN).ok();
    mesh.register("shop/cart", "cart-0", "eu", 7000);
    let key = mesh.path("data/ca/issuer.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let open = check(&mesh);
    let expected = [
        "mtls.endpoints",
        "mtls.permissive",
        "authorization",
        "authorization.audit",
        "roles",
        "keys.permissions",
    ];
    assert_eq!((found(&open), open.code), (expected.map(str::to_owned).to_vec(), Some(1)));
    let text = mesh.run(&["security", "check", "--state-dir", mesh.path("data").to_str().unwrap()]).out;
    for said in ["shop/cart (1 of 1)", "chmod 600", "binding everybody gives everyone", "errors: 2"] {
        assert!(text.contains(said), "{said}: {text}");
    }

    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    mesh.apply(CLOSED).ok();
    let closed = check(&mesh);
    assert_eq!(found(&closed), ["mtls.endpoints"], "the endpoint still speaks plaintext");
}

#[test]
fn a_mesh_without_a_trust_domain_protects_nothing() {
    let run = check(&Mesh::start());
    assert_eq!((found(&run), run.code), (vec!["trustDomain".to_owned()], Some(1)));
}
