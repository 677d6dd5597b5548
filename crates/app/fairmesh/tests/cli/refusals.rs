//! Refused input: nothing of it is stored, and the error names the place and the remedy.

use std::{
    net::TcpListener,
    process::{Command, Stdio},
};

use serde_json::json;

use super::support::{Mesh, SHOP, fairmesh};

/// Description of the fault, YAML, expected line, and a word of the expected hint.
const WRONG: &[(&str, &str, u32, &str)] = &[
    ("unknown field", "kind: Policy\nservice: shop/cart\ntimout: 5s\n", 3, "timeout"),
    ("unknown kind", "kind: Polcy\n", 1, "Policy"),
    ("no kind", "service: shop/cart\n", 1, "kind"),
    ("wrong form of name", "kind: Service\nname: cart\n", 2, "tenant/service"),
    ("not a duration", "kind: Policy\nservice: shop/cart\ntimeout: 5\n", 3, "5s"),
    (
        "rings out of order",
        "kind: Policy\nservice: shop/cart\nlocality:\n  rings: [35ms, 5ms]\n",
        4,
        "ascending",
    ),
    (
        "overlapping shards",
        "kind: ShardMap\nservice: shop/cart\nshards:\n  - {id: 0, start: 0}\n  - {id: 1, start: 0}\n",
        5,
        "ascending",
    ),
    (
        "a policy of balancing in another case",
        "kind: Policy\nservice: shop/cart\nbalancing: {policy: leastrequest}\n",
        3,
        "did you mean 'leastRequest'?",
    ),
    ("broken YAML", "kind: Service\nname: [\n", 2, "check"),
];

#[test]
fn incomplete_health_check_names_missing_field() {
    let mesh = Mesh::start();
    let checked =
        |check: &str| mesh.apply(&format!("kind: Policy\nservice: shop/one\nhealthCheck: {check}\n"));
    let refused = checked("{interval: 5s}").fails(2);
    assert!(refused.contains("http: {path: /healthz}"), "{refused}");
    let refused = checked("{tcp: {}, timeout: 10s}").fails(2);
    assert!(refused.contains("healthCheck.timeout") && refused.contains("up to the interval"), "{refused}");
    checked("{http: {path: /healthz, status: 204}, interval: 2s}").ok();
    let policy = mesh.run(&["get", "policies", "shop/one", "-o", "yaml"]).ok();
    assert!(policy.contains("interval: 2s") && policy.contains("status: 204"), "{policy}");
}

#[test]
fn durations_and_addresses_out_of_range_are_refused_in_the_units_written() {
    let mesh = Mesh::start();
    let zero = mesh.apply("kind: Policy\nservice: shop/one\ntimeout: 0s\n").fails(2);
    assert!(zero.contains("0s is out of range"), "{zero}");
    let refused = |args: &[&str]| mesh.run(args).fails(2);
    let call = refused(&["call", "shop/one", "--timeout", "0s"]);
    assert!(call.contains("0s is out of range"), "{call}");
    for window in ["0s", "99999h"] {
        let cost = refused(&["cost", "--egress", "--window", window]);
        assert!(cost.contains("from 10s to 1h"), "{cost}");
    }
    let dns = refused(&["dns", "--address", "0.0.0.0"]);
    assert!(dns.contains("no client can connect to 0.0.0.0"), "{dns}");
}

#[test]
fn unknown_end_of_round_trip_is_one_error() {
    let mesh = Mesh::start();
    let topology = "kind: Topology\nregions: [{name: eu}]\nroundTrips: [{between: [eu, mars], rtt: 5ms}]\n";
    let refused = mesh.apply(topology).fails(2);
    assert!(refused.contains("'mars' is not a region"), "{refused}");
    assert!(!refused.contains("the list here has"), "{refused}");
}

#[test]
fn shard_move_without_map_or_shard_says_what_is_missing() {
    let mesh = Mesh::start();
    mesh.apply(SHOP).ok();
    let moved = |service: &str, shard: &str| {
        mesh.run(&["shards", "move", service, shard, "--from", "cart-0", "--to", "cart-1"]).fails(1)
    };
    let unsharded = moved("shop/catalog", "0");
    assert!(unsharded.contains("shop/catalog has no shard map"), "{unsharded}");
    let unknown = moved("shop/cart", "9");
    assert!(unknown.contains("shop/cart has no shard 9"), "{unknown}");
}

#[test]
fn invalid_yaml_is_refused_with_file_line_and_hint_and_stores_nothing() {
    let mesh = Mesh::start();
    for (what, yaml, line, hint) in WRONG {
        // A valid document before the invalid one must not be stored either.
        let good = "kind: Service\nname: shop/good\n---\n";
        let file = mesh.file("wrong.yaml", &format!("{good}{yaml}"));
        let complaint = mesh.run(&["apply", "-f", &file]).fails(2);
        let place = format!("wrong.yaml:{}:", line + 3);
        assert!(complaint.contains(&place), "{what}: {place} in {complaint}");
        assert!(complaint.contains("help:") && complaint.contains(hint), "{what}: {complaint}");
    }
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), json!([]));
}

#[test]
fn manifest_with_duplicate_record_is_refused() {
    let mesh = Mesh::start();
    let complaint = mesh.apply("kind: Service\nname: shop/a\n---\nkind: Service\nname: shop/a\n").fails(2);
    assert!(complaint.contains("standard input:1") && complaint.contains("standard input:4"), "{complaint}");
}

#[test]
fn shard_map_of_unsharded_service_refuses_whole_file() {
    let mesh = Mesh::start();
    let map = "kind: ShardMap\nservice: shop/whole\nshards:\n  - {id: 0, start: 0, replicas: []}\n";
    let whole = format!("kind: Service\nname: shop/whole\n---\n{map}");
    for (yaml, why) in [(&*whole, "shop/whole is not sharded"), (map, "shop/whole is not declared")] {
        let file = mesh.file("map.yaml", yaml);
        for extra in [&["--dry-run"][..], &[]] {
            let complaint = mesh.run(&[&["apply", "-f", &file], extra].concat()).fails(1);
            assert!(complaint.contains(why) && complaint.contains("type: sharded"), "{complaint}");
        }
    }
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), json!([]));
}

#[test]
fn apply_refuses_endpoint_documents() {
    let mesh = Mesh::with_shop();
    let complaint = mesh.apply("kind: Endpoints\nservice: shop/cart\nendpoints: []\n").fails(2);
    assert!(complaint.contains("fairmesh register") && complaint.contains("--source"), "{complaint}");
}

#[test]
fn endpoint_source_file_with_another_kind_is_refused_at_start() {
    let mut mesh = Mesh::empty();
    // The next error after the sources were accepted.
    mesh.arguments = ["--trust-domain", "no name"].map(String::from).to_vec();
    let (service, endpoints) =
        ("kind: Service\nname: shop/cart\n", "kind: Endpoints\nservice: shop/cart\nendpoints: []\n");
    std::fs::create_dir(mesh.path("sources")).unwrap();
    let file = |name: &str, text: &str| mesh.file(&format!("sources/{name}"), text);
    file("cart.yaml", endpoints);
    file(".draft.yaml", service);
    file("notes.txt", service);
    let said = |source: &str| {
        let refused = mesh.control_command().args(["--source", source]).output().unwrap();
        (refused.status.code(), String::from_utf8(refused.stderr).unwrap())
    };
    let folder = mesh.path("sources").display().to_string();
    let (_, accepted) = said(&folder);
    assert!(!accepted.contains("kind: Endpoints") && accepted.contains("--trust-domain"), "{accepted}");

    let mixed = file("shop.yaml", &format!("{endpoints}---\n{service}"));
    for source in [&mixed, &folder] {
        let (code, said) = said(source);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("shop.yaml:5: ") && said.contains("this is Service shop/cart"), "{said}");
        assert!(said.contains("keep the endpoints in this file"), "{said}");
    }
    let only = file("shop.yaml", service);
    let (code, said) = said(&only);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("shop.yaml:1: ") && said.contains("fairmesh apply -f"), "{said}");
}

#[test]
fn missing_or_empty_manifest_files_are_refused() {
    let mesh = Mesh::start();
    let missing = mesh.path("missing.yaml");
    let complaint = mesh.run(&["apply", "-f", missing.to_str().unwrap()]).fails(2);
    assert!(complaint.contains("missing.yaml"), "{complaint}");
    mesh.apply("# nothing\n").fails(2);
    std::fs::create_dir(mesh.path("empty")).unwrap();
    mesh.run(&["diff", "-f", mesh.path("empty").to_str().unwrap()]).fails(2);
}

#[test]
fn missing_control_plane_error_names_address_and_command() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}/nobody.sock", folder.path().display());
    for args in [&["get", "services"][..], &["apply", "-f", "-"], &["drain", "shop/cart", "cart-0"]] {
        let complaint = fairmesh(&address, args, SHOP).fails(1);
        assert!(complaint.contains(&address), "{complaint}");
        assert!(complaint.contains("fairmesh control") && complaint.contains("--control"), "{complaint}");
    }
}

#[test]
fn silent_control_plane_is_reported_as_overloaded_or_stopped() {
    // The kernel accepts connections to the listener; no program reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let complaint = fairmesh(&address, &["get", "services"], "").fails(1);
    let said = format!(
        "{address} was connected to, and did not respond to the handshake within 2 s; it may be overloaded or stopped"
    );
    assert!(complaint.contains(&said) && !complaint.contains("Timeout expired"), "{complaint}");
    assert!(complaint.contains("help: ") && complaint.contains("--control "), "{complaint}");
}

#[test]
fn unknown_object_error_names_object_with_hint() {
    let mesh = Mesh::with_shop();
    for (args, said, help) in [
        (&["rollback", "policy", "shop/nix"][..], "the policy of shop/nix never existed", "get policies"),
        (&["history", "service", "shop/nix"], "the service of shop/nix never existed", "get services"),
        (&["imbalance", "shop/nix"], "there is no service shop/nix", "get services"),
        (&["imbalance", "shop/nix", "--json"], "there is no service shop/nix", "get services"),
    ] {
        let complaint = mesh.run(args).fails(1);
        assert!(complaint.contains(said) && complaint.contains(help), "{args:?}: {complaint}");
        assert!(!complaint.contains("/t/"), "{args:?}: {complaint}");
    }
    mesh.run(&["imbalance", "shop/catalog"]).ok();
}

#[test]
fn empty_list_states_reason_if_known() {
    let mesh = Mesh::with_shop();
    for (args, said) in [
        (["get", "health", "shop/cart"], "shop/cart is not checked; add a healthCheck to its policy"),
        (["get", "policies", "shop/cart"], "shop/cart has no policy of its own and runs on the defaults"),
        (["get", "moves", "shop/cart"], "nothing found"),
    ] {
        let run = mesh.run(&args);
        assert!(run.err.contains(said), "{args:?}: {run:?}");
        assert_eq!(run.ok(), "");
    }
}

#[test]
fn usage_error_exits_2_with_hint() {
    let typed: &[(&[&str], &str)] = &[
        (&["get", "services", "--control", "nowhere"], "--control <ADDRESS>: 'nowhere' has no port"),
        (&["register", "shop/cart", "--address", "localhost:7000"], "write 127.0.0.1:7000"),
        (&["get", "endpoints", "cart"], "tenant/service"),
        (&["explain", "shop/cart", "--key", "-1"], "decimal or hexadecimal"),
        (&["drain", "shop/cart", "cart-0", "--deadline", "30"], "30s"),
        (&["describe", "endpoint", "cart"], "tenant/service/instance"),
        (&["apply"], "--file"),
        (&["delete", "endpoint", "shop/cart"], "write its service and its instance"),
        (&["call", "shop/cart", "v2"], "write '/v2'"),
        (&["fly"], "help"),
    ];
    for (args, hint) in typed {
        let complaint = fairmesh("unix:/nobody.sock", args, "").fails(2);
        assert!(complaint.contains(hint) && !complaint.contains(": :"), "{args:?}: {complaint}");
    }
}

#[test]
fn version_and_completions_need_no_control_plane() {
    let version = fairmesh("unix:/nobody.sock", &["version", "--json"], "").json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    for shell in ["bash", "zsh", "fish"] {
        let script = fairmesh("unix:/nobody.sock", &["completions", shell], "").ok();
        assert!(script.contains("COMPLETE"), "{shell}: {script}");
    }
}

#[test]
fn completions_end_quietly_when_reader_closes() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before the program has written anything, or soon afterwards.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

/// Mistakes of newcomers, and the correction in the error.
const TYPED: &[(&str, &str)] = &[
    (
        "routes: [{name: a, split: [{service: shop/a, weight: 90%}]}]",
        "write 90: weights are relative to each other",
    ),
    ("routes: [{name: a, match: {path: /a}}]", "write {exact: /a} for this path alone, or {prefix: /a}"),
    ("timeout: 1.5s", "write 1500ms"),
    ("timeout: 0.25m", "write 15s"),
];

#[test]
fn common_cli_mistakes_are_refused_with_hint() {
    let mesh = Mesh::empty();
    for (text, hint) in TYPED {
        let yaml = format!("kind: Policy\nservice: shop/web\n{text}\n");
        let complaint = fairmesh("", &["lint", "-f", "-"], &yaml).fails(2);
        assert!(complaint.contains(hint), "{text}: {complaint}");
    }
    for (kind, version, hint) in [
        ("VirtualService", "networking.istio.io/v1", "'routes' of a 'kind: Policy'"),
        ("HTTPRoute", "gateway.networking.k8s.io/v1", "'routes' of a 'kind: Policy'"),
        ("Service", "v1", "write 'kind: Service' with 'name: tenant/service'"),
        ("Deployment", "apps/v1", "fairmesh register"),
        ("ConfigMap", "v1", "docs/yaml.md"),
    ] {
        let yaml = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: web}}\nspec: {{}}\n");
        let complaint = fairmesh("", &["lint", "-f", "-"], &yaml).fails(2);
        let said =
            format!("this is a document of Kubernetes ({version} {kind}), which the mesh does not read");
        assert!(complaint.contains(&said) && complaint.contains(hint), "{complaint}");
    }
    let file = mesh.file("pol.yaml", SHOP);
    for command in ["apply", "diff", "lint"] {
        let complaint = fairmesh("", &[command, &file], "").fails(2);
        assert!(complaint.contains(&format!("give files with -f {file}")), "{complaint}");
    }
    for (args, hint) in [
        (&["proxy", "--max-body", "1 TB"][..], "such as 1MB"),
        (&["control", "--log", "verbose"], "'verbose' is not a log level"),
    ] {
        let complaint = fairmesh("", args, "").fails(2);
        assert!(complaint.contains(hint), "{args:?}: {complaint}");
    }
}

#[test]
fn connection_errors_distinguish_unknown_hosts_and_http_ports() {
    let complaint = fairmesh("nowhere.invalid:7400", &["get", "services"], "").fails(1);
    assert!(complaint.contains("no host is known by the name in nowhere.invalid:7400"), "{complaint}");
    let closed = format!("127.0.0.1:{}", fairmesh_test_support::free_port());
    let complaint = fairmesh(&closed, &["get", "services"], "").fails(1);
    assert!(complaint.contains("cannot reach the control plane"), "{complaint}");

    let mesh = Mesh::start();
    let http = mesh.pages();
    let complaint = fairmesh(&http, &["get", "services"], "").fails(1);
    assert!(complaint.contains("it may be an HTTP port") && complaint.contains("7400"), "{complaint}");
    assert!(!complaint.contains("compression"), "{complaint}");
}

#[test]
fn commands_accept_service_named_by_host() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "eu", 7010);
    let by_name = mesh.run(&["explain", "shop/catalog", "--region", "eu"]).ok();
    assert_eq!(mesh.run(&["explain", "catalog.shop", "--region", "eu"]).ok(), by_name);
}

#[test]
fn output_redirected_to_file_has_no_colours() {
    let mesh = Mesh::start();
    mesh.pages();
    let logged = mesh.control_log();
    let complaint = mesh.apply("kind: Service\nnaem: shop/a\n").fails(2);
    let usage = fairmesh("", &["apply", "--nothing"], "").fails(2);
    let proxied = fairmesh("", &["proxy", "--listen", "127.0.0.1:0+tls"], "").fails(2);
    for text in [logged, complaint, usage, proxied] {
        assert!(!text.is_empty() && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn register_reports_program_that_does_not_listen() {
    let mesh = Mesh::start();
    let nothing = format!("127.0.0.1:{}", fairmesh_test_support::free_port());
    let log = mesh.path("register.log");
    let mut register = std::process::Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    register.args(["register", "shop/web", "--address", &nothing, "--control", &mesh.address()]).env_clear();
    let mut register = register.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let began = tokio::time::Instant::now();
    let said = format!("still waiting for the program at {nothing} (");
    super::support::wait_until("the wait is reported", || {
        std::fs::read_to_string(&log).unwrap().contains(&said)
    });
    // Earlier than the interval of repeated reports.
    assert!(began.elapsed() < std::time::Duration::from_secs(10));
    register.kill().unwrap();
    register.wait().unwrap();
}

/// Each is refused before the system is examined, so nothing is attached.
#[test]
fn invalid_kernel_arguments_are_refused_with_hint() {
    let folder = tempfile::tempdir().unwrap();
    let pins = folder.path().join("pins").display().to_string();
    let nine = "1,2,3,4,5,6,7,8,9";
    for (arguments, code, words) in [
        (&["kernel", "attach", "--cgroup", "/", "--bpffs", &pins][..], 1, "cgroup / is the root"),
        (&["kernel", "attach", "--cgroup", "", "--bpffs", &pins], 1, "cgroup '' is the root"),
        (&["kernel", "attach", "--cgroup", "/a", "--max-in-flight", "0"], 2, "from 1, or 'unlimited'"),
        (&["kernel", "attach", "--cgroup", "/a", "--port", "0"], 2, "1..=65535"),
        (&["kernel", "attach", "--cgroup", "/a", "--bpffs", &pins, "--port", nine], 2, "up to 8 times"),
        (&["kernel", "attach", "--bpffs", &pins], 2, "--container <PID>"),
        (&["kernel", "attach", "--cgroup", "/a", "--container", "1"], 2, "cannot be used with"),
        (
            &["kernel", "attach", "--bpffs", &pins, "--container", "2147483647"],
            1,
            "container of process 2147483647",
        ),
        (&["proxy", "--listen", "kernel:127.0.0.1:1,kernel:127.0.0.2:1"], 2, "one --listen kernel:IP:PORT"),
    ] {
        let said = fairmesh("unix:/nowhere", arguments, "").fails(code);
        // Lines are wrapped.
        let said = said.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
