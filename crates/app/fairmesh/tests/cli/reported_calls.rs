//! Reports of calls while an operator watches them.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fairmesh_test_support::free_port;
use serde_json::{Value, json};

use super::{
    calls::echo,
    support::{Agent, Mesh, wait_until},
};

const SERVICES: &str = "\
kind: Service
name: shop/web
---
kind: Service
name: shop/cart
---
kind: Service
name: shop/idle
---
kind: Policy
service: shop/cart
routes: [{name: bulk, match: {path: {prefix: /bulk}}, class: bulk}]
";

/// Programs that call a service through a proxy 20 times per second until dropped.
struct Instance {
    proxy: Child,
    stops: Arc<AtomicBool>,
    calls: Option<JoinHandle<()>>,
}

impl Instance {
    /// Starts an instance of a service behind its sidecar, which calls another service.
    fn start(mesh: &Mesh, agent: &Agent, service: &str, target: (&'static str, &'static str)) -> Self {
        let inbound = format!("{service}@127.0.0.1:{}=127.0.0.1:{}", free_port(), echo());
        let sidecar = ["--inbound", &inbound, "--inbound-instance", "one", "--client-id", service];
        Self::behind(mesh, agent, &sidecar, target)
    }

    /// Starts a proxy with these options, and calls through it.
    fn behind(mesh: &Mesh, agent: &Agent, options: &[&str], target: (&'static str, &'static str)) -> Self {
        let [listen, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let proxy = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(["proxy", "--listen", &listen, "--admin", &admin, "--agent", &agent.address()])
            .args(options)
            .env_clear()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stops = Arc::new(AtomicBool::new(false));
        let mut instance = Self { proxy, stops: Arc::clone(&stops), calls: None };
        mesh.run(&["wait", "proxy", "--admin", &admin]).ok();
        instance.calls = Some(thread::spawn(move || {
            while !stops.load(Relaxed) {
                call(&listen, target);
                thread::sleep(Duration::from_millis(50));
            }
        }));
        instance
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
        let _ = self.calls.take().map(JoinHandle::join);
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// Makes a call and ignores failures, since the other instance may not run yet.
fn call(sidecar: &str, (host, path): (&str, &str)) {
    let Ok(mut stream) = TcpStream::connect(sidecar) else { return };
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    let _ = stream.read_to_string(&mut String::new());
}

/// Rows of calls with a server.
fn answered(listed: &Value) -> Vec<Value> {
    let rows = listed.as_array().unwrap().iter();
    rows.filter(|row| row["answeredPerSecond"].as_f64().unwrap() > 0.0).cloned().collect()
}

#[test]
fn services_report_calls_to_each_other_only_while_watched() {
    let mut mesh = Mesh::start();
    mesh.apply(SERVICES).ok();
    let replica = mesh.replica("root", &mesh.address());
    let agent = mesh.agent_at("eu", &replica.address());
    let _web = Instance::start(&mesh, &agent, "shop/web", ("cart.shop", "/bulk/1"));
    let _cart = Instance::start(&mesh, &agent, "shop/cart", ("web.shop", "/"));
    let calls = |args: &[&str]| mesh.run(&[&["traffic", "calls", "--json"], args].concat()).json();
    assert_eq!(calls(&[]), Value::Array(Vec::new()), "no one looks at any");

    // The agent and a replica forward the program's reports.
    wait_until("calls to the cart are reported", || !answered(&calls(&["shop/cart"])).is_empty());
    let row = answered(&calls(&["shop/cart"]))[0].clone();
    for (field, expected) in
        [("caller", "shop/web"), ("service", "shop/cart"), ("class", "bulk"), ("from", "eu"), ("to", "eu")]
    {
        assert_eq!(row[field], expected, "{row}");
    }
    for field in ["offeredPerSecond", "meanTimeMicros", "bytesPerSecond"] {
        assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
    }
    assert!(row["ageMs"].as_u64().unwrap() < 10_000 && row["shedPerSecond"] == 0.0, "{row}");
    let all = answered(&calls(&[]));
    let is_looked_at = |row: &Value| row["service"] == "shop/cart" || row["caller"] == "shop/cart";
    assert!(all.iter().all(is_looked_at), "calls to the cart, and calls of the cart for these: {all:?}");

    wait_until("calls to the web are reported", || !answered(&calls(&["shop/web"])).is_empty());
    let by_cart = calls(&["--caller", "shop/cart"]);
    assert!(answered(&by_cart).iter().all(|row| row["service"] == "shop/web"), "{by_cart}");
    assert_eq!(calls(&["--caller", "shop/idle"]), Value::Array(Vec::new()));
    let table = mesh.run(&["traffic", "calls", "shop/cart"]).ok();
    assert!(table.contains("MEAN TIME") && table.contains("shop/web  shop/cart  bulk   eu    eu"), "{table}");
    let unknown = mesh.run(&["traffic", "calls", "shop/none"]).fails(1);
    assert!(unknown.contains("there is no service shop/none"), "{unknown}");

    // The next control plane receives the reports at the next look.
    mesh.stop_control("KILL");
    mesh.start_control();
    let calls = |args: &[&str]| mesh.run(&[&["traffic", "calls", "--json"], args].concat()).json();
    wait_until("they are reported again", || !answered(&calls(&["shop/cart"])).is_empty());
}

#[test]
fn reported_calls_name_shared_proxy_by_its_client_id() {
    let mesh = Mesh::start();
    mesh.apply(SERVICES).ok();
    mesh.register("shop/cart", "cart-0", "eu", echo());
    let replica = mesh.replica("root", &mesh.address());
    let agent = mesh.agent_at("eu", &replica.address());
    let _shared = Instance::behind(&mesh, &agent, &["--client-id", "web-1/edge"], ("cart.shop", "/"));
    let command = ["traffic", "calls", "shop/cart"];
    let rows = || answered(&mesh.run(&[&command[..], &["--json"]].concat()).json());
    wait_until("its calls are reported", || !rows().is_empty());
    let row = rows()[0].clone();
    assert_eq!((&row["caller"], &row["callerProcesses"]), (&Value::Null, &json!(["web-1/edge"])), "{row}");
    let table = mesh.run(&command);
    assert!(table.out.contains("\n(web-1/edge)  shop/cart "), "{table:?}");
    assert!(table.err.contains("calls as no service"), "{table:?}");
}
