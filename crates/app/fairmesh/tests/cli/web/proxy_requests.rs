//! Requests of proxies on the page *Why*.

use std::{thread, time::Duration};

use fairmesh_test_support::free_port;
use serde_json::json;

use super::{Browser, Mesh};
use crate::cli::{calls::echo, identities::start, support::wait_until, trace::status};

/// Number of calls, with a pause after each: they last longer than the page takes to show them.
const CALLS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

#[test]
fn web_page_shows_last_and_live_requests_of_proxies() {
    let mut mesh = Mesh::empty();
    let [listen, admin, silent] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let proxies = ["--proxy-admin", &admin, "--proxy-admin", &silent];
    mesh.arguments.extend(proxies.map(str::to_owned));
    mesh.start_control();
    let Some(mut browser) = Browser::start(&format!("http://{}/ui/", mesh.pages())) else { return };
    mesh.apply("{kind: Topology, regions: [{name: eu}]}\n---\n{kind: Service, name: shop/catalog}\n").ok();
    mesh.register("shop/catalog", "catalog-0", "eu", echo());
    let agent = mesh.agent("eu");
    let proxy = ["proxy", "--agent", &agent.address(), "--admin", &admin, "--listen", &listen];
    let _proxy = start(&proxy, None);
    wait_until("the proxy serves", || status(&listen, "catalog.shop").as_deref() == Some("200"));

    let state = "why?service=shop/catalog&region=eu";
    let absent = format!("{silent} does not respond");
    let mut shows = |panels: &[(&str, &str)]| {
        browser.step(&json!({"do": "shows", "state": state, "panels": panels}));
    };
    shows(&[
        ("The decision", "catalog-0"),
        ("Last requests", "catalog-0 in eu"),
        ("Last requests", "steps"),
        ("Last requests", absent.as_str()),
        ("Live requests", "No request has completed since"),
    ]);
    thread::spawn(move || {
        for _ in 0..CALLS {
            status(&listen, "catalog.shop");
            thread::sleep(PAUSE);
        }
    });
    shows(&[("Live requests", "GET /items"), ("Live requests", "catalog-0")]);
    browser.audit(&[state]);
    browser.take_screenshots(&json!([["why", state, "light"], ["why-dark", state, "dark"]]));
}

#[test]
fn web_page_says_how_to_show_requests_of_proxies() {
    let mesh = Mesh::start();
    let Some(mut browser) = Browser::start(&format!("http://{}/ui/", mesh.pages())) else { return };
    let none = [("Last requests", "--proxy-admin ADDRESS")];
    browser.step(&json!({"do": "shows", "state": "why?service=shop/catalog", "panels": none}));
}
