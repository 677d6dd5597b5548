//! The page of traces, with spans that a proxy exports.

use fairmesh_test_support::free_port;
use serde_json::{Value, json};

use super::{Browser, Mesh};
use crate::cli::{calls::echo, identities::start, support::wait_until, trace::status};

const SERVICES: &str = "\
kind: Service
name: shop/catalog
---
kind: Policy
service: shop/catalog
retries: {attempts: 2}
---
kind: Service
name: shop/gone
";

/// Id of a trace in which a call to the catalog was repeated, since one of its endpoints does not listen.
fn repeated(mesh: &Mesh, listen: &str) -> String {
    let mut id = String::new();
    wait_until("an attempt fails and is repeated", || {
        status(listen, "catalog.shop");
        let failed = mesh.run(&["trace", "shop/catalog", "--failed", "--json"]).json();
        let is_repeated = |trace: &&Value| trace["status"] == 200 && trace["spanCount"] == 3;
        let found = failed.as_array().into_iter().flatten().find(is_repeated).cloned();
        found.is_some_and(|trace| {
            assert!(!trace["error"].is_null(), "{trace}");
            id = trace["id"].as_str().unwrap().to_owned();
            true
        })
    });
    id
}

#[test]
fn web_page_shows_traces_with_attempts_and_link() {
    let mut mesh = Mesh::empty();
    let [spans, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let traces = ["--traces", &spans, "--trace-link", "https://jaeger.example/trace/{trace}"];
    mesh.arguments.extend(traces.map(str::to_owned));
    mesh.start_control();
    let pages = mesh.pages();
    let Some(mut browser) = Browser::start(&format!("http://{pages}/ui/")) else { return };
    mesh.apply(SERVICES).ok();
    mesh.register("shop/catalog", "catalog-0", "eu", echo());
    mesh.register("shop/catalog", "catalog-1", "eu", free_port());
    let (agent, to) = (mesh.agent("eu"), format!("http://{spans}"));
    let proxy = ["proxy", "--agent", &agent.address(), "--admin", "none", "--listen", &listen];
    let _proxy = start(&[&proxy[..], &["--trace-to", &to, "--trace-one-in", "1"]].concat(), None);
    wait_until("the proxy serves", || status(&listen, "catalog.shop").as_deref() == Some("200"));
    status(&listen, "gone.shop");
    let id = repeated(&mesh, &listen);
    let printed = mesh.run(&["trace", &id, "--json"]).json();
    assert_eq!(printed["link"], json!(format!("https://jaeger.example/trace/{id}")));

    let mut shows = |state: &str, panels: &[(&str, &str)]| {
        browser.step(&json!({"do": "shows", "state": state, "panels": panels}));
    };
    shows("traces", &[("Traces", "shop/gone"), ("Services of traces", "shop/catalog")]);
    shows("traces?failed=true&order=newest", &[("Traces", "Failed"), ("Traces", "shop/gone")]);
    let state = format!("traces?service=shop/catalog&trace={id}");
    let attempt = [("Trace", "→"), ("Trace", "catalog-0"), ("Trace", "catalog-1"), ("Trace", "eu")];
    shows(&state, &attempt);
    shows(&state, &[("Trace", "Open in jaeger.example"), ("Traces", "with shop/catalog")]);
    let link = format!("{}, trace {id}", printed["name"].as_str().unwrap());
    let state = "traces?service=shop/catalog&failed=true";
    browser.step(&json!({"do": "keyboard", "state": state, "link": link, "panel": "Trace"}));
    let shown = format!("traces?trace={id}");
    browser.audit(&["traces", &shown]);
    browser.take_screenshots(&json!([["traces", shown, "light"], ["traces-dark", shown, "dark"]]));
}

#[test]
fn web_page_says_how_to_keep_traces() {
    let mesh = Mesh::start();
    let Some(mut browser) = Browser::start(&format!("http://{}/ui/", mesh.pages())) else { return };
    let off = [("Traces", "keeps no traces"), ("Traces", "--traces ADDRESS")];
    browser.step(&json!({"do": "shows", "state": "traces", "panels": off}));
}
