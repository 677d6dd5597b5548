//! The floors of the crates, the edges between them, and the limits that the tests hold.

/// The folders in `crates`, from the lowest floor to the highest. A crate may not use a crate of a higher floor.
pub(super) const FLOORS: &[&str] =
    &["base", "decide", "protocol", "observe", "state", "trust", "library", "edge", "control-plane", "app"];

/// Floor of crates that only tests use.
pub(super) const TESTING: &str = "testing";

/// Crates of the workspace that each crate may use, in build order. A crate that is missing here fails the test.
pub(super) const MAY_USE: &[(&str, &[&str])] = &[
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
            "tokens",
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
            "model",
            "metrics",
            "listen",
            "pages",
            "wire",
            "identity",
            "tokens",
            "rib",
            "headers",
            "placement",
            "kernel",
            "calls",
            "server",
            "edge",
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
    ("traffic", &["model", "wire", "views", "registry", "imbalance", "planner", "console", "processes"]),
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
pub(super) const MAY_USE_ALL: &[&str] = &["fairmesh", "bench", "fuzz"];

/// Crates without clock, randomness or I/O, so that simulation and production run the same code.
pub(super) const PURE: &[&str] = &[
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
pub(super) const PURE_FILES: &[(&str, &[&str])] = &[
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
pub(super) const PURE_MAY_USE: &[&str] =
    &["bytes", "regex-automata", "schemars", "serde", "thiserror", "xxhash-rust"];

/// Paths that the sources of a pure crate may not name.
pub(super) const IMPURE: &[&str] = &[
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
pub(super) const ONLY: &[(&str, &[&str])] = &[
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
pub(super) const LISTENS: &[&str] = &[
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
pub(super) const MAX_CRATE_LINES: usize = 15_000;

/// Largest number of lines in a file, including test files.
pub(super) const MAX_FILE_LINES: usize = 600;

/// Calls that start listening, or make a library accept connections.
pub(super) const LISTENING: &[&str] = &[
    "TcpListener::bind",
    "UnixListener::bind",
    "StdListener::bind",
    "axum::serve",
    "serve_with_incoming",
    ".listen(",
];
