//! Routes in `apply` and `explain`.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::json;

use super::support::Mesh;

const POLICY: &str = "
kind: Service
name: shop/tea
---
kind: Policy
service: shop/tea
routes:
  - name: moved
    match: {path: {template: '/old/{id}'}, query: [{name: raw, present: false}]}
    redirect: {path: {full: /new}, status: 308}
  - name: next
    match: {path: {regex: '/v[2-9](/.*)?'}}
    split: [{service: shop/next, weight: 1}]
    mirror: {service: shop/shadow, share: 0.5%}
";

#[test]
fn explain_names_matched_route_and_its_actions() {
    let mesh = Mesh::with_shop();
    let applied = mesh.apply(POLICY);
    for unknown in ["shop/next", "shop/shadow"] {
        let warned = format!("route 'next' of the policy of shop/tea names {unknown}, which is not declared");
        assert!(applied.err.contains(&warned), "{applied:?}");
    }
    let told = mesh.run(&["explain", "shop/tea", "--region", "eu", "--path", "/old/7?a=b"]).ok();
    assert!(
        told.contains("'moved', number 1 of 2") && told.contains("redirects with 308 to /new?a=b"),
        "{told}"
    );
    let told = mesh.run(&["explain", "shop/tea", "--region", "eu", "--path", "/old/7?a=b", "--json"]).json();
    assert_eq!(
        (&told["answered"], &told["goesTo"]),
        (&json!({"status": 308, "location": "/new?a=b"}), &json!(null))
    );
    let told = mesh.run(&["explain", "shop/tea", "--region", "eu", "--path", "/old/7?raw"]);
    assert!(told.out.contains("none of the 2 routes"), "{told:?}");
    let to_next = ["explain", "shop/tea", "--region", "eu", "--path", "/v2/x"];
    let unknown = mesh.run(&to_next);
    assert!(unknown.out.contains("'next', number 2 of 2"), "{unknown:?}");
    assert!(unknown.out.contains("\nfails    shop/next is not known\n"), "{unknown:?}");
    let complaint = unknown.fails(1);
    assert!(complaint.contains("chooses shop/next, which is not declared"), "{complaint}");
    let unknown = mesh.run(&[&to_next[..], &["--json"]].concat());
    assert!(unknown.out.contains("\"reason\": \"unknown_service\""), "{unknown:?}");
    let json: serde_json::Value = serde_json::from_str(&unknown.out).unwrap();
    assert_eq!(why(&mesh, "shop/tea", "/v2/x"), json, "the page shows the same");

    // Each revision is that of the service whose records decided.
    mesh.apply("kind: Service\nname: shop/next\n").ok();
    let told = mesh.run(&to_next).out;
    let [tea, next] = ["shop/tea", "shop/next"].map(|service| {
        let of = format!(" of {service}, balanced by score");
        let line = told.lines().find(|line| line.starts_with("based on revision ") && line.ends_with(&of));
        let revision = line.unwrap_or_else(|| panic!("{service}: {told}")).trim_end_matches(&of);
        revision.trim_start_matches("based on revision ").parse::<u64>().unwrap()
    });
    assert!(tea < next, "{told}");
    let json: serde_json::Value =
        serde_json::from_str(&mesh.run(&[&to_next[..], &["--json"]].concat()).out).unwrap();
    assert_eq!(
        json["basedOn"],
        json!([
            { "service": "shop/tea", "revision": tea, "mapVersion": null },
            { "service": "shop/next", "revision": next, "mapVersion": null },
        ])
    );
    let written = mesh.run(&["get", "policies", "--json"]).ok();
    assert!(written.contains("\"0.5%\"") && written.contains("/v[2-9](/.*)?"), "{written}");
}

/// What the page *Why* gets for a call from region eu.
fn why(mesh: &Mesh, service: &str, path: &str) -> serde_json::Value {
    let pages = mesh.pages();
    let mut stream = TcpStream::connect(&pages).unwrap();
    let target = format!("/ui/api/why/{service}?region=eu&path={path}");
    write!(stream, "GET {target} HTTP/1.1\r\nhost: {pages}\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"))
}

#[test]
fn explain_lists_probabilistic_route_actions_for_any_seed() {
    let mesh = Mesh::with_shop();
    mesh.apply(
        "
kind: Service
name: shop/tea
---
kind: Service
name: shop/canary
---
kind: Policy
service: shop/tea
timeout: 5s
routes:
  - name: release
    split: [{service: shop/tea, weight: 9}, {service: shop/canary, weight: 1}]
    fault: {abort: {share: 50%, status: 503}, delay: {share: 0.5%, time: 100ms}}
    mirror: {service: shop/catalog, share: 5%}
    limit: {calls: 10, per: 1s}
",
    )
    .ok();
    for seed in ["0", "1", "2", "3"] {
        let told = mesh.run(&["explain", "shop/tea", "--region", "eu", "--seed", seed]).out;
        for part in [
            "splits calls: 90.0 % to shop/tea, 10.0 % to shop/canary",
            "50% of calls are aborted with 503",
            "0.5% of calls are delayed by 100ms",
            "5% of calls are copied to shop/catalog",
            "at most 10 calls in 1s",
            "timeouts: 5s for the whole call",
        ] {
            assert!(told.contains(part), "{part} in {told}");
        }
    }
}

#[test]
fn contradictory_route_is_refused_with_field_and_hint() {
    let mesh = Mesh::with_shop();
    for (route, field, hint) in [
        ("match: {path: {regex: '/('}}", "path.regex", "is not an expression"),
        ("headers: {request: {set: {Content-Length: '1'}}}", "headers.request.set", "frames the message"),
        ("rewrite: {path: {prefix: /x}}", "rewrite.path.prefix", "the route matches no prefix"),
        ("fault: {abort: {share: 5, status: 503}}", "share", ""),
        ("redirect: {status: 308}", "redirect", "redirects to the same location"),
    ] {
        let refused =
            mesh.apply(&format!("kind: Policy\nservice: shop/tea\nroutes: [{{name: one, {route}}}]\n"));
        assert!(
            refused.code != Some(0) && refused.err.contains(field) && refused.err.contains(hint),
            "{route}: {refused:?}"
        );
    }
}
