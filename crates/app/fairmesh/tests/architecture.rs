//! Enforces the order of dependencies between crates, and the purity of crates that decide.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The folders in `crates`, from the lowest floor to the highest. A crate may not use a crate of a higher floor.
const FLOORS: &[&str] =
    &["base", "decide", "protocol", "observe", "state", "trust", "library", "edge", "control-plane", "app"];

/// Floor of crates that only tests use.
const TESTING: &str = "testing";

/// Crates of the workspace that each crate may use, in build order. A crate that is missing here fails the test.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    // Registration of metrics; this crate has no metric of its own.
    ("metrics", &[]),
    // Accepts connections without knowing their protocol.
    ("listen", &[]),
    // HTTP messages as bytes, without any knowledge of the mesh.
    ("http", &[]),
    // Exports telemetry to a collector, without any knowledge of the mesh.
    ("otlp", &["metrics"]),
    // Pages of every process. The processes supply the contents.
    ("pages", &["model", "metrics", "listen", "otlp"]),
    ("wire", &["model", "listen", "http"]),
    // Values for operators, from records and reports. Their readers are in other crates.
    ("views", &["model", "wire"]),
    // The page shows the data of a source; the control plane is one source.
    ("web", &["model", "pages", "wire", "views"]),
    ("balancer", &["model"]),
    ("imbalance", &["model"]),
    ("router", &["model", "balancer"]),
    ("headers", &["model", "router"]),
    // Connections know endpoints and their statistics, but neither records nor routes.
    ("connections", &["wire", "balancer", "router", "http", "headers"]),
    ("shared-memory", &[]),
    // eBPF programs and their maps, without HTTP. They decide from the layouts of these two crates.
    ("kernel", &["balancer", "router"]),
    ("signals", &["model"]),
    // Reported counts by time. Other crates report and read the counts.
    ("call-history", &["model", "signals"]),
    // Exported spans, and the parts that a caller may see. Another crate listens for spans.
    ("traces", &["model", "wire", "otlp"]),
    ("rib", &["model", "wire", "signals"]),
    ("identity", &["model", "wire", "rib"]),
    // Verifies tokens. Other crates receive tokens and fetch keys.
    ("tokens", &["model", "router"]),
    ("te", &["model"]),
    ("placement", &["model"]),
    // Assigns probes to agents and evaluates the results. Other crates send and schedule probes.
    ("probes", &["model"]),
    ("backend-loads", &["model"]),
    // Computes tables from facts, for the control plane and the simulator. Other crates collect facts and write tables.
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
    // Decides for a hypothetical caller, as the library would.
    ("explain", &["model", "router", "views", "calls"]),
    // The names that programs use.
    ("client", &["model", "wire", "router", "http", "headers", "calls"]),
    // Shared code of proxies, without knowledge of kernel mode, of servers in front of programs, or of pages.
    ("edge", &["model", "metrics", "shared-memory", "wire", "identity", "http", "headers", "calls", "otlp"]),
    // Routes for tenants identified by their nodes, without knowledge of nodes.
    (
        "gateway",
        &[
            "model", "metrics", "listen", "pages", "wire", "identity", "tokens", "rib", "headers", "calls",
            "server", "edge",
        ],
    ),
    // Forwards bytes, without routes or policies. The records it follows say which replica serves a service.
    ("node", &["model", "metrics", "listen", "pages", "wire", "rib", "server", "edge"]),
    (
        "proxy",
        &[
            "model",
            "metrics",
            "listen",
            "pages",
            "shared-memory",
            "kernel",
            "identity",
            "http",
            "headers",
            "calls",
            "server",
            "otlp",
            "edge",
        ],
    ),
    // Holds private keys, without knowledge of calls.
    ("keyserver", &["model", "metrics", "listen", "pages", "wire", "identity"]),
    // Answers from declarations, without calls to other processes.
    ("dns", &["model", "metrics", "listen", "pages", "wire", "rib"]),
    ("lookaside", &["model", "metrics", "listen", "pages", "wire", "rib", "router", "signals", "calls"]),
    // Runs controllers, without knowledge of any of them.
    ("controllers", &["model", "rib", "store"]),
    ("gateway-control", &["model", "metrics", "wire", "rib", "placement", "backend-loads", "controllers"]),
    // Records who wrote what, in a file beside the store.
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
    // Shared code of commands. Commands know nothing of each other.
    ("console", &["model", "wire", "identity", "views"]),
    (
        "processes",
        &[
            "model",
            "metrics",
            "listen",
            "wire",
            "identity",
            "placement",
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
    // Commands about traffic. The only records they change are those of the planner.
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
    // Shows the responses of a control plane; it runs nothing.
    ("top", &["model", "wire", "views", "console"]),
    // Shared code of tests, and the test runner.
    ("test-support", &["model"]),
    ("test-runner", &["test-support"]),
    // A newcomer's program needs only the library.
    ("examples", &["client", "server"]),
];

/// Crates that may use all other crates: binaries, benchmarks and fuzzers.
const MAY_USE_ALL: &[&str] = &["fairmesh", "bench", "fuzz"];

/// Crates without clock, randomness or I/O, so that simulation and production run the same code.
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

/// Pure files in crates that are not pure: the core of the RIB, and the decisions about shards.
const PURE_FILES: &[(&str, &[&str])] = &[
    (
        "rib",
        &[
            "batch.rs",
            "covering_prefixes.rs",
            "table.rs",
            "table/apply_update.rs",
            "table/previous_values.rs",
            "table/memory_size.rs",
            "update.rs",
            "progress_schedule.rs",
            "node_core.rs",
            "watcher_hub.rs",
            "watcher_hub/update_pull.rs",
            "watcher_hub/memory_size.rs",
            "watcher_hub/watcher.rs",
        ],
    ),
    ("control", &["reports/watched_services.rs"]),
    ("traces", &["otlp.rs", "span.rs", "store.rs", "view.rs"]),
    (
        "registry",
        &[
            "shard_balance/plan.rs",
            "shard_balance/region_pool.rs",
            "shard_balance/load_window.rs",
            "shards/map_edit.rs",
            "shards/next_action.rs",
        ],
    ),
];

/// External crates that a pure crate may use: derive macros, buffers, hashing, expressions.
const PURE_MAY_USE: &[&str] = &["bytes", "regex-automata", "schemars", "serde", "thiserror", "xxhash-rust"];

/// Paths that the sources of a pure crate may not name.
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

/// External dependencies that only the listed crates may have.
const ONLY: &[(&str, &[&str])] = &[
    ("redb", &["store"]),
    // The peer of a benchmark is a stack without a mesh, with its own certificates and TLS.
    ("rcgen", &["identity", "bench"]),
    ("x509-parser", &["identity"]),
    // Listeners for clients outside the mesh have their own certificates.
    ("rustls", &["identity", "edge", "bench", "test-support"]),
    ("tokio-rustls", &["identity", "edge", "bench", "test-support"]),
];

/// Files that may bind sockets and serve them. All others use `listen` or `wire`, so that limits are set in one place.
/// The files here have limits of their own, listed in `docs/limits.md`, or are demonstrations.
const LISTENS: &[&str] = &[
    "listen/src/page_listener.rs",
    "wire/src/transport/listener.rs",
    "wire/src/transport/serve.rs",
    // Listeners for programs, for a program's server, and for the successor of a process during an upgrade.
    "proxy/src/lifecycle/bind.rs",
    "core/src/lifecycle/socket_handover.rs",
    "core/src/lifecycle/process_succession.rs",
    // DNS queries over TCP and UDP.
    "dns/src/lib.rs",
    // Terminates TLS in front of a program.
    "processes/src/register/tls_terminator.rs",
    // Answers probes of other agents.
    "agent/src/zone_probes/probe_responder.rs",
    "demo/src/fleet.rs",
    "demo/src/service.rs",
    // The process connects to itself.
    "kernel/src/caller_read_probe.rs",
    // Opens the proxy's listener in the network namespace of a container.
    "kernel/src/container.rs",
    // Only checks whether a port is free.
    "test-support/src/ports.rs",
];

/// Largest number of lines in a crate's `src`, without generated files.
const MAX_CRATE_LINES: usize = 15_000;

/// Largest number of lines in a file, including test files.
const MAX_FILE_LINES: usize = 600;

/// Calls that start listening, or make a library accept connections.
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
    /// Dependencies by their declared names, without those for tests and build scripts.
    dependencies: BTreeSet<String>,
    /// Whether `cargo test --doc` runs the library's examples; `None` without a library.
    runs_examples: Option<bool>,
}

impl Crate {
    /// Index of the crate's floor in [`FLOORS`]; `None` for crates outside `crates` and for test crates.
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
fn crates_use_no_crate_of_higher_architecture_layer() {
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
fn crate_order_has_no_cycle() {
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
fn deciding_crates_use_no_clock_randomness_or_io() {
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
fn rib_core_uses_no_clock_randomness_or_io() {
    for one in crates() {
        let files = PURE_FILES.iter().filter(|(name, _)| *name == one.name).flat_map(|(_, files)| *files);
        for file in files {
            assert_pure(&one.folder.join("src").join(file));
        }
    }
}

/// `cargo test --doc` compiles every crate, which takes minutes on a busy machine. `doctest = false` skips a crate.
#[test]
fn crates_with_doc_examples_run_doctests() {
    for one in crates() {
        let Some(runs_examples) = one.runs_examples else { continue };
        let has_examples = sources(&one.folder.join("src")).iter().any(|file| has_example(file));
        assert_eq!(runs_examples, has_examples, "{}: `doctest` of Cargo.toml", one.folder.display());
    }
}

/// Whether a documentation comment in the file has a code block.
fn has_example(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap();
    text.lines()
        .map(str::trim_start)
        .any(|line| (line.starts_with("///") || line.starts_with("//!")) && line.contains("```"))
}

#[test]
fn crates_and_files_stay_within_line_limits() {
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

/// The first of `words` in the code of a file, with its line; test code is skipped.
fn names(file: &Path, words: &'static [&'static str]) -> Option<(usize, &'static str)> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().enumerate().find_map(|(number, line)| {
        let code = line.split("//").next().unwrap_or_default();
        words.iter().find(|word| code.contains(**word)).map(|word| (number + 1, *word))
    })
}

/// Every Rust file below a folder with its number of lines, without generated files and build output.
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

/// Every Rust file below a folder, without test files.
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
