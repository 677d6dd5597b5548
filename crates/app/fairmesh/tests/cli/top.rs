//! Calls between services as counted by callers and servers, and `fairmesh top`.

use std::process::Command;

use axum::{Router, http::StatusCode, routing::get};
use fairmesh_client::{Body, Mesh as Library};
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_test_support::skipped;
use fairmesh_wire::{
    transport::Address,
    v1::{CountedCalls, ReadCallsRequest},
};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime};

use super::support::{Agent, Mesh, wait_until};

/// Servers see callers without an identity, which the cart's rules do not allow.
const SERVICES: &str = "\
kind: Service
name: shop/cart
---
kind: Service
name: shop/gone
---
kind: Service
name: shop/front
---
kind: Policy
service: shop/front
routes: [{name: all, split: [{service: shop/undeclared, weight: 1}]}]
---
kind: Policy
service: shop/cart
authorization: {mode: audit, rules: [{name: web, from: [shop/web]}]}
";

const SUCCESSES: u64 = 300;
const FAILURES: u64 = 30;
const CALLS: u64 = SUCCESSES + FAILURES;

/// Calls a server of the cart, a service without servers, and one whose route chooses an undeclared backend.
async fn call(agent: Address) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = MeshServer::builder("shop/cart").listener(&listener).unwrap();
    let server = server.agent(agent.clone()).start().await.unwrap();
    let fails = get(|| async { StatusCode::INTERNAL_SERVER_ERROR });
    let router = Router::new().route("/ok", get("good")).route("/fails", fails);
    tokio::spawn(async move { serve_http(listener, router, &server).await });
    let library = Library::builder().agent(agent).client_id("web").connect().await.unwrap();
    let front = library.service("shop/front").unwrap();
    front.send(Request::get("/").body(Body::empty()).unwrap()).await.unwrap_err();
    let cart = library.service("shop/cart").unwrap();
    for n in 0..CALLS {
        let path = if n < SUCCESSES { "/ok" } else { "/fails" };
        let response = cart.send(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        response.into_body().collect().await.unwrap();
    }
    let gone = library.service("shop/gone").unwrap();
    gone.send(Request::get("/").body(Body::empty()).unwrap()).await.unwrap_err();
    // Both must report until the runtime ends.
    std::mem::forget(library);
}

fn started() -> (Mesh, Agent, Runtime) {
    let mesh = Mesh::start();
    mesh.apply(SERVICES).ok();
    let agent = mesh.agent("eu");
    let runtime = Runtime::new().unwrap();
    runtime.block_on(call(agent.address().parse().unwrap()));
    (mesh, agent, runtime)
}

/// Sum of the cart's rows that callers or servers counted: calls, successes and failures.
fn counted(rows: &[CountedCalls], by_server: bool) -> [u64; 3] {
    let rows = rows.iter().filter(|row| row.service == "shop/cart" && row.by_server == by_server);
    rows.fold([0; 3], |[calls, successes, failures], row| {
        let responses = |class: usize| row.responses.get(class).copied().unwrap_or_default();
        [calls + row.calls, successes + responses(1), failures + responses(4)]
    })
}

#[test]
fn top_counts_same_calls_at_callers_and_servers() {
    let (mesh, _agent, runtime) = started();
    let expected = [CALLS, SUCCESSES, FAILURES];
    let mut seen = [[0; 3]; 2];
    wait_until("both sides have reported all calls", || {
        let read = async {
            let mut admin = mesh.connect().await.admin();
            admin.read_calls(ReadCallsRequest { window_s: 600, ..Default::default() }).await
        };
        let response = runtime.block_on(read).unwrap().into_inner();
        let rows: Vec<_> = response.rows.into_iter().filter_map(|row| row.calls).collect();
        seen = [false, true].map(|by_server| counted(&rows, by_server));
        seen == [expected; 2]
    });
    let top = |args: &[&str]| mesh.run(&[&["top", "--window", "10m", "--json"], args].concat()).json();
    let services = top(&[]);
    let of =
        |name: &str| services.as_array().unwrap().iter().find(|row| row["service"] == name).unwrap().clone();
    assert_eq!(
        (&of("shop/cart")["calls"], of("shop/cart")["responses"].as_array().unwrap().len()),
        (&json!(CALLS), 2)
    );
    assert_eq!(of("shop/gone")["faults"], json!([{"fault": "no_endpoints", "calls": 1}]));
    assert_eq!(of("shop/front")["faults"], json!([{"fault": "unknown_service", "calls": 1}]));
    let denied = top(&["--by", "denied"]);
    for (row, path, calls) in [(&denied[0], "/ok", SUCCESSES), (&denied[1], "/fails", FAILURES)] {
        assert_eq!((&row["service"], &row["mode"]), (&json!("shop/cart"), &json!("audit")));
        assert_eq!(
            (&row["method"], &row["path"], &row["calls"]),
            (&json!("GET"), &json!(path), &json!(calls)),
            "{denied}"
        );
    }
    assert_eq!(top(&["--filter", "nothing"]), Value::Array(Vec::new()));
    let table = mesh.run(&["top", "--once", "--by", "pairs"]).ok();
    assert!(table.contains("CALLER") && table.contains("shop/cart"), "{table}");
    runtime.shutdown_background();
}

/// A terminal in tmux, with its own tmux server.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn tmux(&self, args: &[&str]) -> std::io::Result<String> {
        let output = Command::new("tmux").args(["-S", &self.socket]).args(args).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn shows(&self, text: &str) {
        let mut screen = String::new();
        wait_until(&format!("the screen shows {text}"), || {
            screen = self.tmux(&["capture-pane", "-p"]).unwrap();
            screen.contains(text)
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

#[test]
fn top_in_terminal_drills_down_and_ends() {
    let mesh = Mesh::start();
    let terminal = Terminal { socket: mesh.path("tmux.sock").display().to_string() };
    if let Err(missing) = terminal.tmux(&["-V"]) {
        return skipped("no terminal can be driven", format!("tmux: {missing}"));
    }
    drop(mesh);
    let (mesh, _agent, runtime) = started();
    let command = format!("{} top --window 10m --control {}", env!("CARGO_BIN_EXE_fairmesh"), mesh.address());
    let terminal = Terminal { socket: mesh.path("tmux.sock").display().to_string() };
    terminal.tmux(&["new-session", "-d", "-x", "140", "-y", "20", &command]).unwrap();
    terminal.shows("history begins");
    terminal.shows("shop/cart");
    terminal.tmux(&["send-keys", "/"]).unwrap();
    terminal.tmux(&["send-keys", "cart", "Enter", "Enter"]).unwrap();
    terminal.shows("e endpoints");
    terminal.tmux(&["send-keys", "e"]).unwrap();
    terminal.shows("serving");
    terminal.tmux(&["send-keys", "q"]).unwrap();
    wait_until("the session ends", || terminal.tmux(&["list-sessions"]).unwrap().is_empty());
    runtime.shutdown_background();
}
