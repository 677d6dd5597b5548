//! Rules on user tokens, headers and addresses, with real processes.

use super::{
    authorization::Service,
    support::{Run, wait_until},
    tokens::{ISSUER, Key},
};

/// Members may call with a token of the issuer, unless a header marks the request as a test; programs of this machine
/// may read.
const RULES: &str = "\
kind: Authorization
service: SERVICE
tokens: [{issuer: 'https://idp.example', audiences: [fairmesh]}]
rules:
  - {name: members, from: [shop/web], when: [{claim: groups, values: ['shop-*']}]}
  - {name: local, from: [shop/web], methods: [HEAD], sourceAddresses: [127.0.0.0/8]}
  - {name: remote, from: [shop/web], methods: [PUT], sourceAddresses: [10.0.0.0/8]}
  - {name: tests, action: deny, when: [{header: x-env, values: [test]}]}
";

fn is_refused(run: &Run, status: &str) -> bool {
    run.code == Some(1) && run.err.contains(status) && !run.err.contains("* try 2")
}

#[test]
fn authorization_rules_check_user_tokens_headers_and_addresses() {
    let (service, key, other) = (Service::start(), Key::new("one"), Key::new("one"));
    let mesh = &service.mesh;
    let jwks = mesh.file("jwks.json", &key.jwks());
    mesh.run(&["identity", "token-issuers", "add", ISSUER, "--jwks", &jwks, "--message", "shop users"]).ok();
    let listed = mesh.run(&["identity", "token-issuers", "list", "--json"]).json();
    assert_eq!((&listed[0]["issuer"], &listed[0]["keys"]), (&ISSUER.into(), &1.into()), "{listed}");
    service.apply(&RULES.replace("SERVICE", "shop/cart"));
    service.apply(&RULES.replace("SERVICE", "shop/bytes"));
    let call = |name: &str, token: Option<String>, more: &[&str]| {
        let header = token.map(|token| format!("authorization: Bearer {token}"));
        let header: Vec<_> = header.iter().flat_map(|header| ["-H", header]).collect();
        service.call(name, "shop/web", &[&header, more, &["/"]].concat())
    };
    let cart = |token: Option<String>, more: &[&str]| call("shop/cart", token, more);
    wait_until("the rules are in force", || is_refused(&cart(None, &[]), "403"));
    wait_until("the keys are known", || cart(Some(key.token(600)), &[]).code == Some(0));
    assert!(is_refused(&cart(Some(other.token(600)), &[]), "401"), "another key signed it");
    assert!(is_refused(&cart(Some(key.token(-600)), &[]), "401"), "it has expired");
    assert!(is_refused(&cart(Some(key.token(600)), &["-H", "x-env: test"]), "403"));
    assert!(
        is_refused(&cart(Some(key.token(600)), &["-H", "x_env: test"]), "403"),
        "programs read it as x-env"
    );
    cart(None, &["-X", "HEAD"]).ok();
    assert!(is_refused(&cart(None, &["-X", "PUT"]), "403"), "it does not come from there");
    wait_until("register judges connections", || {
        is_refused(&call("shop/bytes", Some(key.token(600)), &[]), "403")
    });
    let explain = |more: &[&str]| {
        let args = ["explain", "shop/cart", "--region", "eu", "--as", "shop/web"];
        mesh.run(&[&args[..], more].concat()).code
    };
    assert_eq!(explain(&["--claim", "groups=shop-oncall"]), Some(0));
    assert_eq!(explain(&["--claim", "groups=shop-oncall", "--header", "x-env: test"]), Some(1));
    assert_eq!(explain(&["--method", "PUT", "--source", "10.1.2.3"]), Some(0));
    assert_eq!(explain(&["--method", "PUT"]), Some(1));
    mesh.run(&["identity", "token-issuers", "remove", ISSUER]).ok();
    wait_until("tokens of the issuer are refused", || is_refused(&cart(Some(key.token(600)), &[]), "401"));
}
