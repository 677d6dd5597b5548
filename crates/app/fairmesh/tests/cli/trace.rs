//! `fairmesh trace` with spans that a proxy exports to the control plane.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use fairmesh_test_support::free_port;

use super::{
    calls::echo,
    identities::start,
    support::{Mesh, wait_until},
};

/// Status of a request over a new connection.
fn status(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: catalog.shop\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    Some(response.split(' ').nth(1)?.to_owned())
}

#[test]
fn trace_command_shows_slow_and_failed_requests_with_attempts() {
    let mut mesh = Mesh::empty();
    let [spans, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    mesh.arguments.extend(["--traces".to_owned(), spans.clone()]);
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/catalog\n---\nkind: Service\nname: shop/gone\n").ok();
    mesh.register("shop/catalog", "catalog-0", "eu", echo());
    let (agent, to) = (mesh.agent("eu"), format!("http://{spans}"));
    let proxy = ["proxy", "--agent", &agent.address(), "--admin", "none", "--listen", &listen];
    let traced = ["--trace-to", &to, "--trace-one-in", "1"];
    let _proxy = start(&[&proxy[..], &traced].concat(), None);
    wait_until("the proxy serves", || status(&listen, "/items").as_deref() == Some("200"));
    let list = |args: &[&str]| mesh.run(&[&["trace", "--json"], args].concat()).json();
    wait_until("its spans have arrived", || list(&["shop/catalog"])[0]["spanCount"] == 2);
    let listed = list(&["shop/catalog"])[0].clone();
    let id = listed["id"].as_str().unwrap();
    let shown = list(&[id]);
    let (request, attempt) = (&shown["spans"][0], &shown["spans"][1]);
    assert_eq!((&request["depth"], &request["service"]), (&0.into(), &"shop/catalog".into()), "{shown}");
    assert_eq!((&attempt["depth"], &attempt["parent"]), (&1.into(), &request["id"]), "{shown}");
    assert_eq!((&attempt["instance"], &attempt["region"]), (&"catalog-0".into(), &"eu".into()), "{shown}");
    assert!(attempt["revision"].as_u64().is_some_and(|revision| revision > 0), "{shown}");
    let waterfall = mesh.run(&["trace", id]).ok();
    assert!(waterfall.contains("→ GET shop/catalog") && waterfall.contains("█"), "{waterfall}");
    assert_eq!(list(&["shop/gone"]), serde_json::json!([]));
    assert!(mesh.run(&["trace", &"0".repeat(31), "--json"]).fails(2).contains("32 hexadecimal digits"));
    assert!(mesh.run(&["trace", &"a".repeat(32)]).fails(1).contains("there is no trace"));
}

#[test]
fn control_plane_without_traces_says_how_to_enable_them() {
    let mesh = Mesh::start();
    assert!(mesh.run(&["trace"]).fails(1).contains("--traces ADDRESS"));
}
