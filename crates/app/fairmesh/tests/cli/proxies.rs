//! Information from a running proxy: its routes, its completed requests, and its version.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
};

use fairmesh_test_support::free_port;
use serde_json::{Value, json};

use super::support::{Mesh, wait_until};

const SERVICES: &str = "\
kind: Service
name: shop/web
---
kind: Service
name: shop/canary
---
kind: Policy
service: shop/web
timeout: 5s
routes:
  - name: canary
    match: {path: {prefix: /new}}
    split: [{service: shop/web, weight: 9}, {service: shop/canary, weight: 1}]
";

#[test]
fn proxy_without_identity_is_ready_with_warning_and_found_by_check() {
    let mesh = Mesh::start();
    let plain = Proxy::start(&mesh, ("--control", &mesh.address()));
    assert!(plain.readiness().ends_with("\r\n\r\nready\n"), "no identity is needed");
    // A Workload API that does not respond.
    let api = format!("spiffe:unix:{}", mesh.path("none.sock").display());
    let from = ("--control", &*mesh.address());
    let proxy = Proxy::start_with(&mesh, from, Stdio::null(), &[("FAIRMESH_IDENTITY", &api)]);
    let readiness = proxy.readiness();
    assert!(
        readiness.starts_with("HTTP/1.1 200") && readiness.contains("without an identity"),
        "{readiness}"
    );
    let check = |proxy: &Proxy| {
        let pages = ["--control-admin", "none", "--agent-admin", "none", "--admin", &proxy.admin];
        mesh.run(&[&["check", "--json"], &pages[..]].concat()).out.contains("proxy.identity")
    };
    assert!(check(&proxy) && !check(&plain));
    let status = mesh.run(&["proxy", "status", "--admin", &proxy.admin]).ok();
    assert!(status.lines().any(|line| line.contains("identity") && line.contains("none: ")), "{status}");
}

/// A proxy on its own ports.
struct Proxy {
    child: Child,
    listen: String,
    admin: String,
}

impl Proxy {
    /// Starts a proxy that follows the control plane or an agent.
    fn start(mesh: &Mesh, from: (&str, &str)) -> Self {
        Self::start_logged(mesh, from, Stdio::null())
    }

    fn start_logged(mesh: &Mesh, from: (&str, &str), log: Stdio) -> Self {
        Self::start_with(mesh, from, log, &[])
    }

    fn start_with(mesh: &Mesh, (option, from): (&str, &str), log: Stdio, env: &[(&str, &str)]) -> Self {
        let [listen, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(["proxy", "--region", "eu", "--listen", &listen, "--admin", &admin, option, from])
            .env_clear()
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let proxy = Self { child, listen, admin };
        mesh.run(&["wait", "proxy", "--admin", &proxy.admin]).ok();
        proxy
    }

    /// The response of the page of readiness.
    fn readiness(&self) -> String {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        write!(stream, "GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// Sends a request for `web.shop`; returns the status line.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.listen).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: web.shop\r\nconnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response.lines().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server that responds with 200, and with 503 below `/broken`; returns its port.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let status = if buffer[..n].starts_with(b"GET /broken") { "503 x" } else { "200 OK" };
                    let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok");
                }
            });
        }
    });
    port
}

fn mesh_with_web() -> Mesh {
    let mesh = Mesh::start();
    mesh.apply(SERVICES).ok();
    mesh.register("shop/web", "web-0", "eu", serve());
    mesh.register("shop/canary", "canary-0", "eu", serve());
    mesh
}

#[test]
fn tap_prints_selected_requests() {
    let mesh = mesh_with_web();
    let proxy = Proxy::start(&mesh, ("--control", &mesh.address()));
    let tap = |args: &'static [&'static str]| {
        let (control, admin) = (mesh.address(), proxy.admin.clone());
        thread::spawn(move || {
            let all = [&["tap", "shop/web", "--admin", &admin, "-n", "1"][..], args].concat();
            super::support::fairmesh(&control, &all, "")
        })
    };
    let (broken, items) = (tap(&["--status", "5xx", "--json"]), tap(&["--path", "/items"]));
    wait_until("both have seen a request", || {
        assert!(proxy.get("/").ends_with("200 OK"));
        let (_, _) = (proxy.get("/broken"), proxy.get("/items/7?secret=1"));
        broken.is_finished() && items.is_finished()
    });
    let broken: Value = serde_json::from_str(&broken.join().unwrap().ok()).unwrap();
    assert_eq!((&broken["path"], &broken["status"]), (&json!("/broken"), &json!(503)));
    assert_eq!((&broken["instance"], &broken["region"]), (&json!("web-0"), &json!("eu")));
    assert!(broken["totalMs"].is_number(), "{broken}");
    let items = items.join().unwrap().ok();
    assert!(items.contains("GET    \"/items/7\" 200") && !items.contains("secret"), "{items}");
    assert!(mesh.run(&["tap", "shop/web", "--status", "6xx"]).fails(2).contains("write a status"));
}

#[test]
fn proxy_routes_show_splits_and_default_route() {
    let mesh = mesh_with_web();
    let proxy = Proxy::start(&mesh, ("--control", &mesh.address()));
    let routes = |args: &[&str]| mesh.run(&[&["proxy", "routes", "--admin", &proxy.admin], args].concat());
    assert!(routes(&[]).err.contains("no service was called through the proxy"));
    assert!(routes(&["shop/web"]).fails(1).contains("was not called through this proxy"));
    assert!(proxy.get("/").ends_with("200 OK"));
    let table = routes(&[]).ok();
    for part in
        ["canary", "path /new and below", "shop/web 90 %, shop/canary 10 %", "(default)", "timeout: 5s"]
    {
        assert!(table.contains(part), "{part} in {table}");
    }
    let described = mesh.run(&["describe", "shop/web"]).ok();
    let row = described.lines().find(|line| line.contains("path /new and below")).unwrap_or_default();
    assert!(row.contains("shop/web 90 %, shop/canary 10 %") && !described.contains("match:"), "{described}");
    let page = routes(&["shop/web", "--json"]).json();
    assert_eq!(page[0]["policy"]["routes"][0]["name"], "canary");
}

#[test]
fn proxy_routes_show_backends_and_their_errors() {
    let mesh = mesh_with_web();
    mesh.apply(
        "{kind: Policy, service: shop/web, routes: [{name: canary, split: [{service: shop/canary, weight: 1}]}]}",
    )
    .ok();
    let proxy = Proxy::start(&mesh, ("--control", &mesh.address()));
    let endpoints = || mesh.run(&["proxy", "endpoints", "shop/canary", "--admin", &proxy.admin]);
    assert!(endpoints().fails(1).contains("was not called through this proxy"));
    assert!(proxy.get("/").ends_with("200 OK"));
    let broken = proxy.get("/broken");
    assert!(broken.contains(" 503"), "{broken}");
    assert!(endpoints().ok().contains("canary-0"));
    let table = mesh.run(&["proxy", "routes", "shop/web", "--admin", &proxy.admin]).ok();
    let row = table.lines().find(|line| line.contains("50.0 %")).unwrap_or_else(|| panic!("{table}"));
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells, ["shop/web", "canary", "shop/canary", "2", "0", "1", "0", "50.0", "%", "0"], "{table}");
    // The command says at once that nothing will come, and continues until it is interrupted.
    for (service, says) in
        [("shop/canary", "routes of shop/web"), ("shop/none", "was not called through it yet")]
    {
        let mut tap = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(["tap", service, "--admin", &proxy.admin])
            .env_clear()
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(tap.stderr.take().unwrap()).read_line(&mut line).unwrap();
        tap.kill().unwrap();
        tap.wait().unwrap();
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn check_finds_endpoint_ejected_by_proxy() {
    let mesh = mesh_with_web();
    // No server listens at the port.
    mesh.register("shop/web", "web-1", "eu", free_port());
    let log = mesh.path("proxy.log");
    let proxy =
        Proxy::start_logged(&mesh, ("--control", &mesh.address()), File::create(&log).unwrap().into());
    let nowhere = format!("unix:{}", mesh.path("none.sock").display());
    let args = [
        "check",
        "--control-admin",
        "none",
        "--agent-admin",
        "none",
        "--admin",
        &proxy.admin,
        "--agent",
        &nowhere,
    ];
    wait_until("the check finds it", || {
        proxy.get("/");
        let found = mesh.run(&args).out;
        found.contains("proxy.ejected")
            && found.contains("avoids 1 of 2 endpoints of shop/web")
            && found.contains("web-1")
    });
    wait_until("the log has it", || {
        proxy.get("/");
        let text = fs::read_to_string(&log).unwrap();
        text.contains("ejected") && text.contains("web-1")
    });
}

#[test]
fn proxy_routes_show_region_table_without_control_plane() {
    let mut mesh = mesh_with_web();
    mesh.apply("{kind: Policy, service: shop/web, traffic: {shares: [{from: eu, to: {eu: 70%, us: 20%}, dropped: 10%}]}}")
        .ok();
    let proxy = Proxy::start(&mesh, ("--control", &mesh.address()));
    let routes = |mesh: &Mesh| mesh.run(&["proxy", "routes", "shop/web", "--admin", &proxy.admin]);
    wait_until("the proxy has the table", || {
        proxy.get("/");
        routes(&mesh).out.contains("eu 70%, us 20%")
    });
    mesh.stop_control("TERM");
    let told = routes(&mesh).ok();
    let row = told.lines().find(|line| line.contains("eu 70%, us 20%")).unwrap();
    assert!(row.contains("10%") && row.contains("by hand") && row.trim_end().ends_with("in force"), "{told}");
    let page = mesh.run(&["proxy", "routes", "shop/web", "--json", "--admin", &proxy.admin]).json();
    assert_eq!(page[0]["table"]["shares"][0]["toPercent"], json!({"eu": 70.0, "us": 20.0}), "{page}");
    assert_eq!((&page[0]["table"]["force"], &page[0]["table"]["from"]), (&json!("full"), &json!("eu")));
}

#[test]
fn version_lists_every_responding_process() {
    let mesh = mesh_with_web();
    let agent = mesh.agent("eu");
    let proxy = Proxy::start(&mesh, ("--agent", &agent.address()));
    // An agent follows only records that programs ask for.
    assert!(proxy.get("/").ends_with("200 OK"));
    let own = env!("CARGO_PKG_VERSION");
    let version = || {
        mesh.run(&["version", "--json", "--agent", &agent.address(), "--admin", &proxy.admin]).json()["processes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["kind"].as_str().unwrap().to_owned(), one["version"].as_str().unwrap_or("-").to_owned()))
            .collect::<Vec<_>>()
    };
    let expected = ["control plane", "agent", "agent of this machine", "proxy"];
    let expected: Vec<_> = expected.iter().map(|kind| ((*kind).to_owned(), own.to_owned())).collect();
    wait_until("every version is known", || version() == expected);
    assert_eq!(mesh.run(&["version", "--client"]).ok().lines().count(), 1);
}
