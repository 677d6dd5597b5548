//! Keeps the direction of dependencies: which crate may know which, and that what decides is pure.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The folders of `crates`, from the ground up. A crate uses none of a floor above its own.
const FLOORS: &[&str] =
    &["base", "decide", "protocol", "observe", "state", "trust", "library", "edge", "control-plane", "app"];

/// The floor of what tests alone use.
const TESTING: &str = "testing";

/// Which crates of ours each crate may use, in the order in which they build on each other. A crate that is not listed
/// fails the test: a new crate must be added here at its place.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    // How metrics are registered, and no metric.
    ("metrics", &[]),
    // How connections are accepted knows nothing of what they carry.
    ("listen", &[]),
    // Messages as bytes: no word of the mesh.
    ("http", &[]),
    // Says what it saw to a collector, and knows nothing of the mesh.
    ("otlp", &["metrics"]),
    // The pages of every process: what is on them comes from the processes.
    ("pages", &["model", "metrics", "listen", "otlp"]),
    ("wire", &["model", "listen", "http"]),
    // Values for operators, from records and reports: who reads these is none of it.
    ("views", &["model", "wire"]),
    // The page shows what a source knows, and the control plane is one.
    ("web", &["model", "wire", "views"]),
    ("balancer", &["model"]),
    ("imbalance", &["model"]),
    ("router", &["model", "balancer"]),
    ("headers", &["model", "router"]),
    // Connections know endpoints and their statistics, and neither records nor routes.
    ("connections", &["wire", "balancer", "router", "http", "headers"]),
    ("shared-memory", &[]),
    // eBPF programs and their maps: no word of HTTP. They decide from what these two lay out.
    ("kernel", &["balancer", "router"]),
    ("signals", &["model"]),
    // Counts that were reported, by time: who reports them, and who reads them, is none of it.
    ("call-history", &["model", "signals"]),
    // Spans that processes exported, and what a caller may see of them: where they are listened for is none of it.
    ("traces", &["model", "wire", "otlp"]),
    ("rib", &["model", "wire", "signals"]),
    ("identity", &["model", "wire", "rib"]),
    // Verifies tokens: who brings them, and who fetches keys, is none of it.
    ("tokens", &["model", "router"]),
    ("te", &["model"]),
    ("placement", &["model"]),
    // Which agents probe which, and what that says: who sends and who asks is none of it.
    ("probes", &["model"]),
    ("backend-loads", &["model"]),
    // From facts to tables, for the control plane and the simulator: who collects facts and writes tables is none of it.
    ("planner", &["model", "signals", "te"]),
    ("sim", &["model", "balancer", "router", "rib", "te", "planner", "signals"]),
    ("store", &["model", "wire", "rib"]),
    ("registry", &["model", "wire", "rib", "store"]),
    ("replica", &["model", "metrics", "listen", "pages", "wire", "rib", "signals", "store"]),
    (
        "agent",
        &[
            "model",
            "metrics",
            "listen",
            "pages",
            "wire",
            "identity",
            "rib",
            "router",
            "shared-memory",
            "imbalance",
            "signals",
            "probes",
        ],
    ),
    (
        "server",
        &[
            "model",
            "listen",
            "wire",
            "identity",
            "tokens",
            "rib",
            "balancer",
            "router",
            "imbalance",
            "signals",
            "http",
            "headers",
        ],
    ),
    (
        "calls",
        &[
            "model",
            "wire",
            "identity",
            "rib",
            "balancer",
            "router",
            "signals",
            "shared-memory",
            "http",
            "headers",
            "connections",
        ],
    ),
    // Decides for a caller that does not exist, as the library would.
    ("explain", &["model", "router", "views", "calls"]),
    // Names what programs use.
    ("client", &["model", "wire", "router", "http", "headers", "calls"]),
    // What proxies have in common knows no kind of proxy: neither the kernel form nor servers in front of programs and pages.
    ("edge", &["model", "metrics", "shared-memory", "wire", "identity", "http", "headers", "calls", "otlp"]),
    // Routes for tenants that their nodes name, and knows no node.
    (
        "gateway",
        &[
            "model", "metrics", "listen", "pages", "wire", "identity", "tokens", "rib", "headers", "calls",
            "server", "edge",
        ],
    ),
    // Forwards bytes: no word of routes or policies. The records that it follows say which replica serves a service.
    ("node", &["model", "metrics", "listen", "pages", "wire", "rib", "server", "edge"]),
    (
        "proxy",
        &[
            "model", "metrics", "listen", "pages", "kernel", "identity", "http", "headers", "calls",
            "server", "otlp", "edge",
        ],
    ),
    // Holds keys and knows nothing of calls.
    ("keyserver", &["model", "metrics", "listen", "pages", "wire", "identity"]),
    // Answers from declarations: it calls nothing.
    ("dns", &["model", "metrics", "listen", "pages", "wire", "rib"]),
    ("lookaside", &["model", "metrics", "listen", "pages", "wire", "rib", "router", "signals", "calls"]),
    // Runs controllers, and knows none of them.
    ("controllers", &["model", "rib", "store"]),
    ("gateway-control", &["model", "metrics", "wire", "rib", "placement", "backend-loads", "controllers"]),
    // Who wrote which records: a file beside the store, and no part of it.
    ("audit", &["model", "identity", "rib", "store"]),
    (
        "control",
        &[
            "model",
            "metrics",
            "listen",
            "pages",
            "wire",
            "identity",
            "tokens",
            "rib",
            "signals",
            "planner",
            "gateway-control",
            "probes",
            "store",
            "registry",
            "imbalance",
            "controllers",
            "audit",
            "call-history",
            "traces",
            "views",
            "explain",
            "web",
        ],
    ),
    // What commands share. They know none of one another.
    ("console", &["model", "wire", "identity", "views"]),
    (
        "processes",
        &[
            "model",
            "metrics",
            "listen",
            "wire",
            "identity",
            "rib",
            "shared-memory",
            "registry",
            "replica",
            "agent",
            "server",
            "calls",
            "client",
            "keyserver",
            "lookaside",
            "dns",
            "kernel",
            "edge",
            "gateway",
            "node",
            "proxy",
            "control",
            "console",
            "pages",
        ],
    ),
    ("demo", &["model", "wire", "client", "server", "kernel", "console"]),
    // What shows traffic changes no records but who plans.
    ("traffic", &["model", "wire", "registry", "imbalance", "planner", "console", "processes"]),
    (
        "cli",
        &[
            "model",
            "wire",
            "identity",
            "tokens",
            "router",
            "sim",
            "registry",
            "kernel",
            "calls",
            "client",
            "agent",
            "proxy",
            "audit",
            "control",
            "views",
            "explain",
            "console",
            "processes",
            "traffic",
        ],
    ),
    // Shows what a control plane responds, and runs nothing.
    ("top", &["model", "wire", "views", "console"]),
    // What tests share, and what runs them.
    ("test-support", &["model"]),
    ("test-runner", &["test-support"]),
    // A newcomer's program needs the library and nothing else of ours.
    ("examples", &["client", "server"]),
];

/// What wires everything: binaries, and what is tried on all that reads bytes of others.
const MAY_USE_ALL: &[&str] = &["fairmesh", "bench", "fuzz"];

/// Crates that hold no clock, no chance and no I/O, so that simulation and production run the same code.
const PURE: &[&str] = &[
    "model",
    "balancer",
    "router",
    "imbalance",
    "signals",
    "te",
    "planner",
    "placement",
    "backend-loads",
    "probes",
    "call-history",
];

/// Files that are as pure within a crate that is not: the core of the RIB, and what decides on shards.
const PURE_FILES: &[(&str, &[&str])] = &[
    (
        "rib",
        &[
            "batch.rs",
            "prefixes.rs",
            "table.rs",
            "table/apply_update.rs",
            "table/previous_values.rs",
            "table/memory.rs",
            "update.rs",
            "progress.rs",
            "node_core.rs",
            "hub.rs",
            "hub/pull.rs",
            "hub/memory.rs",
            "hub/watcher.rs",
        ],
    ),
    ("control", &["signals/watched.rs"]),
    ("traces", &["otlp.rs", "span.rs", "store.rs", "view.rs"]),
    (
        "registry",
        &[
            "balance/plan.rs",
            "balance/region_pool.rs",
            "balance/load_window.rs",
            "shards/map_edit.rs",
            "shards/next_action.rs",
        ],
    ),
];

/// What a pure crate may be built on: derive macros, buffers, hashing, expressions.
const PURE_MAY_USE: &[&str] = &["bytes", "regex-automata", "schemars", "serde", "thiserror", "xxhash-rust"];

/// What the sources of a pure crate may not name.
const IMPURE: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "tokio::",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::thread",
    "std::env",
    "rand::",
    "async fn",
];

/// Dependencies that only some crates may have.
const ONLY: &[(&str, &[&str])] = &[
    ("redb", &["store"]),
    // The peer of a benchmark is a stack without a mesh, with certificates and TLS of its own.
    ("rcgen", &["identity", "bench"]),
    ("x509-parser", &["identity"]),
    // Listeners for clients that are not part of the mesh have certificates of their own.
    ("rustls", &["identity", "edge", "bench", "test-support"]),
    ("tokio-rustls", &["identity", "edge", "bench", "test-support"]),
];

/// Where sockets are listened on, and served. Everything else does so by `listen` or `wire`, so that its limits are set
/// in one place; each of these has limits of its own, in `docs/limits.md`, or is a demonstration.
const LISTENS: &[&str] = &[
    "listen/src/pages.rs",
    "wire/src/transport/listener.rs",
    "wire/src/transport/serve.rs",
    // Listeners for programs, for a program's server, and for the process that takes over.
    "proxy/src/lifecycle/bind.rs",
    "core/src/lifecycle/handover.rs",
    "core/src/lifecycle/succession.rs",
    // Queries of DNS, over TCP and UDP.
    "dns/src/lib.rs",
    // In front of a program.
    "processes/src/register/terminator.rs",
    // Probes of other agents.
    "agent/src/zone_probes/answer.rs",
    "demo/src/fleet.rs",
    "demo/src/service.rs",
    // A connection of the process to itself.
    "kernel/src/looker.rs",
    // Only finds out that a port is free.
    "test-support/src/ports.rs",
];

/// The most lines of a crate's `src`, generated files left out: a larger one has parts that build faster and read better alone.
const MAX_CRATE_LINES: usize = 15_000;

/// The most lines of a file, also of tests.
const MAX_FILE_LINES: usize = 600;

/// How one begins to listen, or has a library accept.
const LISTENING: &[&str] = &[
    "TcpListener::bind",
    "UnixListener::bind",
    "StdListener::bind",
    "axum::serve",
    "serve_with_incoming",
    ".listen(",
];

struct Crate {
    name: String,
    folder: PathBuf,
    /// By name as declared; those for tests and build scripts are left out.
    dependencies: BTreeSet<String>,
    /// Whether `cargo test --doc` runs the examples of its library; `None` without a library.
    runs_examples: Option<bool>,
}

impl Crate {
    /// The position of its floor; `None` of what lies beside `crates`, and of what tests alone use.
    fn floor(&self) -> Option<usize> {
        let folder = self.folder.parent().unwrap();
        if !folder.parent().unwrap().ends_with("crates") || folder.ends_with(TESTING) {
            return None;
        }
        let floor = FLOORS.iter().position(|floor| folder.ends_with(floor));
        Some(floor.unwrap_or_else(|| panic!("{} lies on no floor: {}", self.name, folder.display())))
    }
}

fn crates() -> Vec<Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().iter().map(read).collect()
}

fn read(package: &serde_json::Value) -> Crate {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let dependencies = package["dependencies"].as_array().unwrap().iter();
    let mut targets = package["targets"].as_array().unwrap().iter();
    let library = targets.find(|target| target["kind"][0] == "lib");
    Crate {
        name: short(&text(&package["name"])),
        folder: Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned(),
        dependencies: dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .map(|dependency| text(&dependency["name"]))
            .collect(),
        runs_examples: library.and_then(|library| library["doctest"].as_bool()),
    }
}

fn short(name: &str) -> String {
    name.strip_prefix("fairmesh-").unwrap_or(name).to_owned()
}

fn ours(dependency: &str) -> Option<&str> {
    dependency.strip_prefix("fairmesh-")
}

#[test]
fn every_crate_uses_only_listed_crates() {
    let allowed: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for one in crates() {
        if MAY_USE_ALL.contains(&one.name.as_str()) {
            continue;
        }
        let Some(allowed) = allowed.get(one.name.as_str()) else {
            wrong.push(format!("{} is not in MAY_USE", one.name));
            continue;
        };
        let used = one.dependencies.iter().filter_map(|dependency| ours(dependency));
        wrong.extend(
            used.filter(|used| !allowed.contains(used)).map(|used| format!("{} uses {used}", one.name)),
        );
    }
    assert!(wrong.is_empty(), "against the direction of dependencies: {wrong:#?}");
}

#[test]
fn crate_uses_none_of_a_floor_above_its_own() {
    let crates = crates();
    let floors: BTreeMap<&str, usize> =
        crates.iter().filter_map(|one| Some((&*one.name, one.floor()?))).collect();
    for one in &crates {
        let Some(own) = floors.get(&*one.name) else { continue };
        for used in one.dependencies.iter().filter_map(|dependency| ours(dependency)) {
            let Some(floor) = floors.get(used) else { continue };
            assert!(floor <= own, "{} uses {used} of the floor '{}' above it", one.name, FLOORS[*floor]);
        }
    }
}

#[test]
fn the_order_of_crates_has_no_circle() {
    let mut beneath = BTreeSet::new();
    for (name, uses) in MAY_USE {
        assert!(uses.iter().all(|used| beneath.contains(used)), "{name} stands before what it uses");
        beneath.insert(*name);
    }
}

#[test]
fn restricted_dependencies_stay_in_their_crates() {
    for one in crates() {
        for (dependency, owners) in ONLY {
            let has = one.dependencies.contains(*dependency);
            let fits = !has || owners.contains(&one.name.as_str());
            assert!(fits, "{} uses {dependency}, which belongs to {owners:?}", one.name);
        }
    }
}

#[test]
fn deciding_crates_are_pure() {
    for one in crates().into_iter().filter(|one| PURE.contains(&one.name.as_str())) {
        for dependency in &one.dependencies {
            let fits = ours(dependency).is_some_and(|name| PURE.contains(&name))
                || PURE_MAY_USE.contains(&dependency.as_str());
            assert!(fits, "{} is pure and may not use {dependency}", one.name);
        }
        for file in sources(&one.folder.join("src")) {
            assert_pure(&file);
        }
    }
}

#[test]
fn the_core_of_the_rib_is_pure() {
    for one in crates() {
        let files = PURE_FILES.iter().filter(|(name, _)| *name == one.name).flat_map(|(_, files)| *files);
        for file in files {
            assert_pure(&one.folder.join("src").join(file));
        }
    }
}

/// `cargo test --doc` reads every crate whole, for minutes on a busy machine. `doctest = false` leaves out crates without examples.
#[test]
fn crates_with_examples_in_their_documentation_run_them() {
    for one in crates() {
        let Some(runs_examples) = one.runs_examples else { continue };
        let has_examples = sources(&one.folder.join("src")).iter().any(|file| has_example(file));
        assert_eq!(runs_examples, has_examples, "{}: `doctest` of Cargo.toml", one.folder.display());
    }
}

/// Whether a documentation comment of a file has a block of code.
fn has_example(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap();
    text.lines()
        .map(str::trim_start)
        .any(|line| (line.starts_with("///") || line.starts_with("//!")) && line.contains("```"))
}

#[test]
fn crates_and_files_stay_within_their_bounds_of_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap();
    let mut wrong = Vec::new();
    let mut crate_lines = BTreeMap::<PathBuf, usize>::new();
    for folder in ["crates", "bench", "examples", "fuzz", "sim", "vectors"] {
        for (file, lines) in line_counts(&root.join(folder)) {
            if lines > MAX_FILE_LINES {
                wrong.push(format!("{} has {lines} lines", file.display()));
            }
            if let Some(src) = file.ancestors().find(|folder| folder.ends_with("src")) {
                *crate_lines.entry(src.to_owned()).or_default() += lines;
            }
        }
    }
    let large = crate_lines.into_iter().filter(|(_, lines)| *lines > MAX_CRATE_LINES);
    wrong.extend(large.map(|(src, lines)| format!("{} has {lines} lines", src.display())));
    assert!(wrong.is_empty(), "divide by subject: {wrong:#?}");
}

#[test]
fn listener_limits_come_from_one_table() {
    for one in crates().into_iter().filter(|one| !["bench", "fuzz", "examples"].contains(&one.name.as_str()))
    {
        for file in sources(&one.folder.join("src")) {
            let is_of_tests = file.components().any(|part| part.as_os_str() == "tests");
            if is_of_tests || LISTENS.iter().any(|allowed| file.ends_with(allowed)) {
                continue;
            }
            let found = names(&file, LISTENING);
            assert!(
                found.is_none(),
                "{}: {found:?}: listen by fairmesh_listen or fairmesh_wire",
                file.display()
            );
        }
    }
}

fn assert_pure(file: &Path) {
    let found = names(file, IMPURE);
    assert!(found.is_none(), "{}: a pure file names {found:?}", file.display());
}

/// Which of these words the code of a file names first, and in which line; its tests may name them.
fn names(file: &Path, words: &'static [&'static str]) -> Option<(usize, &'static str)> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().enumerate().find_map(|(number, line)| {
        let code = line.split("//").next().unwrap_or_default();
        words.iter().find(|word| code.contains(**word)).map(|word| (number + 1, *word))
    })
}

/// Every Rust file below a folder with its number of lines; generated and built ones are left out.
fn line_counts(folder: &Path) -> Vec<(PathBuf, usize)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("generated") && !path.ends_with("target") {
                found.extend(line_counts(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            found.push((path, lines));
        }
    }
    found
}

/// Every Rust file below a folder, but for files of tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
    found
}
