//! The pages about the whole mesh: regions, imbalance, security and fleet.

use std::{
    process::{Child, Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use fairmesh_test_support::free_port;
use fairmesh_wire::v1;
use serde_json::json;
use tokio::runtime::Runtime;

use super::{Browser, Mesh};
use crate::cli::support::endpoint;

const RECORDS: &str = "\
kind: Topology
regions: [{name: asia}, {name: eu, neighbours: [us]}, {name: us}]
roundTrips: [{between: [eu, us], rtt: 80ms}, {between: [asia, us], rtt: 140ms}]
---
kind: RoleBinding
name: page
role: admin
subjects: [anonymous]
---
kind: Service
name: shop/cart
---
kind: Policy
service: shop/cart
traffic: {planner: rings}
authorization: {rules: [{name: web, from: [shop/web]}]}
---
kind: Service
name: shop/catalog
---
kind: Policy
service: shop/catalog
mtls: permissive
authorization: {mode: audit, rules: [{name: web, from: [shop/web]}]}
---
kind: Service
name: shop/ledger
type: sharded
---
kind: ShardMap
service: shop/ledger
interval: {start: 0, end: 1000}
shards:
  - {id: 0, start: 0, replicas: [{instance: ledger-0, region: eu, role: primary}]}
  - {id: 1, start: 500, replicas: [{instance: ledger-1, region: us, role: primary}]}
";

/// Instances with the cores they use; those of the cart are unevenly busy.
const INSTANCES: &[(&str, &str, &str, u64)] = &[
    ("shop/cart", "cart-0", "eu", 4),
    ("shop/cart", "cart-1", "eu", 1),
    ("shop/cart", "cart-2", "us", 2),
    ("shop/catalog", "catalog-0", "us", 3),
    ("shop/catalog", "catalog-1", "us", 2),
    ("shop/ledger", "ledger-0", "eu", 1),
    ("shop/ledger", "ledger-1", "us", 1),
];

/// A state of the page, and a text of each of its panels.
type Shown = (&'static str, &'static [(&'static str, &'static str)]);

const BEFORE_THE_DRAIN: Shown = (
    "regions?service=shop/cart&forecast=eu",
    &[
        ("Regions", "asia"),
        ("Round trips", "80.0 ms"),
        ("Drains", "No region is drained"),
        ("Planned services", "shop/cart"),
        ("Plan", "round"),
        ("Plan", "Load over capacity"),
        ("Forecast", "shop/ledger"),
    ],
);

const SHOWN: &[Shown] = &[
    (
        "regions",
        &[
            ("Drains", "keeps"),
            ("Calls between regions", "Leave their region"),
            ("Calls between regions", "asia"),
            ("Probes", "From the zone of the row"),
            ("What changed", "drain of the region us begun"),
        ],
    ),
    ("imbalance", &[("Causes", "within a host type"), ("Waste", "shop/cart")]),
    ("imbalance?by=region&tenant=shop", &[("Waste", "eu")]),
    (
        "security",
        &[
            ("Open services", "permissive"),
            ("Denied calls", "DELETE /items/*"),
            ("Authority", "root"),
            ("Revocations", "shop/old"),
            ("Audit log", "Choose a part to read it"),
        ],
    ),
    ("security?log=security", &[("Audit log", "its machine was lost")]),
    ("service?service=shop/cart", &[("CPU by caller", "shop/web"), ("CPU by caller", "75.0 %")]),
    ("security?log=activity", &[("Certificates by age", "agent/eu")]),
    ("fleet", &[("Followers", "agent"), ("Controllers", "planner"), ("Releases", "agent")]),
    ("service?service=shop/ledger", &[("Shards", "ledger-0"), ("Moves", "No shard is being moved")]),
];

/// Screenshots for the documentation: name, state and colour scheme.
const SHOTS: &[(&str, &str, &str)] = &[
    ("regions", "regions?service=shop/cart", "light"),
    ("regions-dark", "regions?service=shop/cart&forecast=us", "dark"),
    ("imbalance", "imbalance", "light"),
    ("imbalance-dark", "imbalance", "dark"),
    ("security", "security?log=activity", "light"),
    ("security-dark", "security", "dark"),
    ("fleet", "fleet", "light"),
    ("fleet-dark", "fleet", "dark"),
    ("shards", "service?service=shop/ledger", "light"),
];

/// Agents that probe each other; they end on drop.
struct Agents(Vec<Child>);

impl Agents {
    fn start(mesh: &Mesh) -> Self {
        let start = |region: &str| {
            let socket = mesh.path(&format!("probing-{region}.sock"));
            let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
            command
                .args(["agent", "--region", region, "--name", region, "--admin", "none"])
                .args(["--control", &mesh.address(), "--listen", &format!("unix:{}", socket.display())])
                .args(["--zone-probes", &format!("127.0.0.1:{}", free_port()), "--state-dir"])
                .arg(mesh.path(&format!("probing-{region}")))
                .env_clear()
                .stderr(Stdio::null());
            command.spawn().unwrap()
        };
        Self(["eu", "us"].map(start).into())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Registers the instances, and reports their usage in a complete minute.
fn serve(mesh: &Mesh) {
    for (at, (service, instance, region, _)) in INSTANCES.iter().enumerate() {
        // Only the catalog accepts plaintext.
        let mtls = *service != "shop/catalog";
        mesh.announce(service, v1::Endpoint { mtls, ..endpoint(instance, region, 9_000 + at as u16) });
    }
    #[allow(clippy::disallowed_methods, reason = "usage is reported by minutes of the wall clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let minute = u32::try_from(now.as_secs() / 60 - 2).unwrap();
    let usage = |(service, instance, region, cores): &(&str, &str, &str, u64)| v1::InstanceUsage {
        service: (*service).into(),
        instance: (*instance).into(),
        location: Some(v1::Location { region: (*region).into(), ..v1::Location::default() }),
        minutes: vec![v1::MinuteUsage {
            minute,
            cpu_us: cores * 60_000_000,
            covered_ms: 60_000,
            requests: 600 * cores,
            ..v1::MinuteUsage::default()
        }],
    };
    let report = v1::ReportSignalsRequest {
        usages: INSTANCES.iter().map(usage).collect(),
        ..v1::ReportSignalsRequest::default()
    };
    let reported = async { mesh.connect().await.signals().report(report).await.unwrap() };
    Runtime::new().unwrap().block_on(reported);
}

/// Reports calls of the last minutes: a growing share leaves the region, and rules refuse some.
fn report_calls(mesh: &Mesh) {
    const STEPS: u64 = 40;
    let pair = |(from, to, calls): (&str, &str, u64)| v1::CountedCalls {
        caller: "shop/web".into(),
        service: "shop/cart".into(),
        from: from.into(),
        to: to.into(),
        calls,
        ..v1::CountedCalls::default()
    };
    let denied = |step: u64| v1::DeniedCalls {
        service: "shop/cart".into(),
        caller: "spiffe://test.mesh/shop/ads".into(),
        method: if step == 0 { "GET" } else { "DELETE" }.into(),
        path: if step == 0 { "/items" } else { "/items/*" }.into(),
        count: 1,
        ..v1::DeniedCalls::default()
    };
    let cpu = |(user, cpu_us): (&str, u64)| v1::AttributedCpu {
        service: "shop/cart".into(),
        user: user.into(),
        cpu_us,
        ..v1::AttributedCpu::default()
    };
    let interval = |step: u64| v1::CountedInterval {
        age_ms: (STEPS - step) * 10_000,
        span_ms: 10_000,
        calls: [
            ("eu", "eu", 900 - 15 * step),
            ("eu", "us", 15 * step),
            ("us", "us", 500),
            ("asia", "us", 120),
            ("asia", "asia", 80),
        ]
        .map(pair)
        .into(),
        denied: vec![denied(step)],
        cpu: [("shop/web", 750_000), ("(idle)", 250_000)].map(cpu).into(),
    };
    let counts = v1::CountReport {
        reporter: 1,
        number: 1,
        intervals: (0..STEPS).map(interval).collect(),
        left_out: 0,
    };
    let report = v1::ReportSignalsRequest { counts: Some(counts), ..v1::ReportSignalsRequest::default() };
    let reported = async { mesh.connect().await.signals().report(report).await.unwrap() };
    Runtime::new().unwrap().block_on(reported);
}

#[test]
fn web_pages_show_regions_waste_security_and_processes() {
    let mut mesh = Mesh::empty();
    mesh.arguments = ["--trust-domain", "test.mesh"].map(str::to_owned).to_vec();
    mesh.start_control();
    mesh.apply(RECORDS).ok();
    let pages = mesh.pages();
    let Some(mut browser) = Browser::start(&format!("http://{pages}/ui/")) else { return };
    let _agents = Agents::start(&mesh);
    serve(&mesh);
    report_calls(&mesh);
    mesh.run(&["identity", "revoke", "shop/old", "--message", "its machine was lost"]).ok();

    let mut shows = |(state, panels): &(&str, &[(&str, &str)])| {
        browser.step(&json!({"do": "shows", "state": state, "panels": panels}));
    };
    shows(&BEFORE_THE_DRAIN);
    mesh.run(&["drain", "--region", "us", "--yes", "--detach"]).ok();
    SHOWN.iter().for_each(&mut shows);
    browser.step(
        &json!({"do": "keyboard", "state": "regions", "link": "Forecast of a drain of us", "panel": "Forecast"}),
    );
    browser.audit(&[
        "regions?service=shop/cart&forecast=us",
        "imbalance",
        "security?log=activity",
        "fleet",
        "service?service=shop/ledger",
    ]);
    browser.take_screenshots(&json!(SHOTS));
}
