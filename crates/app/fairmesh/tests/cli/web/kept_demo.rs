//! The page of a kept demo, as a new operator sees it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use fairmesh_test_support::{alone, skipped, tool};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{Browser, modules};
use crate::cli::support::{fairmesh, wait_until};

/// Caller and callee of each edge between the five services and their callers.
const EDGES: &[(&str, &str)] = &[
    ("shop/web", "shop/catalog"),
    ("shop/web", "shop/recommend"),
    ("shop/web", "shop/checkout"),
    ("shop/web", "shop/cart"),
    ("shop/checkout", "shop/cart"),
    ("shop/checkout", "shop/payment"),
];
/// A server that holds the only primary copy of shards.
const KILLED: &str = "cart-eu-0";

/// A demo that has played all parts and goes on. It ends on drop.
struct Demo {
    child: Child,
    /// What it prints. It stays open, so that the demo may print more.
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Demo {
    /// Returns the demo, and the address of its page.
    fn start() -> (Self, String) {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(["demo", "--quick", "--keep", "--dir"])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut demo = Self { child, output, folder };
        let mut line = String::new();
        while demo.output.read_line(&mut line).unwrap() > 0 {
            if let Some(page) = line.trim_end().strip_prefix("The web page is at ") {
                let page = page.trim_end_matches('.').to_owned();
                return (demo, page);
            }
            line.clear();
        }
        panic!("the demo was not kept");
    }

    fn control(&self) -> String {
        format!("unix:{}", self.folder.path().join("control/control.sock").display())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        wait_until("the demo ends", || self.child.try_wait().unwrap().is_some());
    }
}

/// The process of a demo's server.
fn server(folder: &Path, instance: &str) -> Pid {
    let folder = folder.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_server = |line: &str| line.contains(instance) && line.contains(&folder) && line.contains("serve");
    let found = processes.filter_map(|process| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        let pid = process.file_name().to_str()?.parse().ok()?;
        is_server(&String::from_utf8_lossy(&line)).then(|| Pid::from_raw(pid))?
    });
    found.last().expect("the server runs")
}

#[test]
fn web_page_of_kept_demo_shows_edges_and_killed_server() {
    let has_browser = tool("chromium").is_some() && modules().is_some_and(|folder| folder.is_dir());
    if tool("python3").is_none() || !has_browser {
        return skipped("the demo or a browser cannot run", "python3, and `scripts/setup.sh browser`");
    }
    // A busy machine makes the demo fail.
    let _machine = Runtime::new().unwrap().block_on(alone());
    let (demo, page) = Demo::start();
    let mut browser = Browser::start(&page).expect("there is a browser");
    browser.step(&json!({"do": "edges", "edges": EDGES}));

    let why = browser.step(&json!({"do": "why", "service": "shop/payment", "region": "eu", "seed": "7"}));
    let explain = ["explain", "shop/payment", "--region", "eu", "--seed", "7", "--json"];
    let told = fairmesh(&demo.control(), &explain, "").json();
    assert_eq!(why["goesTo"], told["goesTo"]["instance"]);

    browser.step(&json!({"do": "edges", "edges": [["shop/web", "shop/cart"]]}));
    kill_process(server(demo.folder.path(), KILLED), Signal::KILL).unwrap();
    let seen = browser.step(&json!({"do": "failing", "service": "shop/cart", "caller": "shop/web"}));
    assert!(seen["ms"].as_u64().unwrap() <= 10_000, "{seen}");
    let panels = [("Endpoints", "lost since"), ("What changed", "cart-eu-0 in eu lost")];
    browser.step(&json!({"do": "shows", "state": "service?service=shop/cart", "panels": panels}));
    browser.step(&json!({"do": "shows", "state": "security", "panels": [["Open services", "shop/catalog"]]}));
    browser.audit(&["graph", "service?service=shop/cart", "regions", "security", "fleet"]);
}
