//! `fairmesh check` finds nothing in a sound mesh, and every planted fault by name.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    thread,
};

use serde_json::Value;

use fairmesh_test_support::free_port;

use super::{
    calls::echo,
    dev::Dev,
    support::{Mesh, Run, fairmesh, send, wait_until},
};

/// Names of the findings of level warning or error.
pub(crate) fn found(run: &Run) -> Vec<String> {
    let report: Value = serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    let bad = report["checks"].as_array().unwrap().iter().filter(|one| {
        let bad = one["level"] == "warning" || one["level"] == "error";
        assert!(!bad || !one["remedy"].as_str().unwrap().is_empty(), "a finding says what to do: {one}");
        bad
    });
    let bad: Vec<String> = bad.map(|one| one["check"].as_str().unwrap().to_owned()).collect();
    assert_eq!(report["sound"], bad.is_empty());
    assert_eq!(run.code, Some(i32::from(!bad.is_empty())), "{run:?}");
    bad
}

/// Starts a server that responds to every request with these headers and body; returns its address.
fn page(headers: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, mut request) = (connection.unwrap(), [0; 4096]);
            let _ = connection.read(&mut request);
            let length = body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = connection.write_all((head + body).as_bytes());
        }
    });
    address
}

/// A `fairmesh dev` mesh with a server.
struct Sound {
    dev: Dev,
    agent: String,
    server: Child,
}

impl Sound {
    fn start() -> Self {
        let dev = Dev::start(tempfile::tempdir().unwrap(), &[]);
        let agent = format!("unix:{}", dev.path("agent.sock").display());
        let program = format!("127.0.0.1:{}", echo());
        let mut register = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        register.args(["register", "shop/hello", "--address", &program, "--agent", &agent]).env_clear();
        let server = register.stderr(Stdio::null()).spawn().unwrap();
        dev.run(&["wait", "shop/hello"]).ok();
        Self { dev, agent, server }
    }

    /// Runs `fairmesh check` with these page addresses.
    fn check(&self, http: &str, admin: &str, further: &[&str]) -> Run {
        let Self { dev, agent, .. } = self;
        let args = [
            "check",
            "--control-admin",
            http,
            "--admin",
            admin,
            "--agent",
            agent,
            "--agent-admin",
            &dev.metrics,
        ];
        dev.run(&[&args[..], further].concat())
    }

    fn found(&self, http: &str, admin: &str) -> Vec<String> {
        found(&self.check(http, admin, &["--json"]))
    }

    fn stop(mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        self.dev.stop();
    }
}

#[test]
fn check_of_sound_mesh_has_no_findings() {
    let mesh = Sound::start();
    let (http, admin) = (mesh.dev.http.clone(), mesh.dev.admin.clone());
    let sound = mesh.check(&http, &admin, &["--json"]);
    assert_eq!(found(&sound), [""; 0], "{sound:?}");
    for examined in ["control", "agent", "agent.connected", "agent.age", "proxy", "clock", "control.ready"] {
        assert!(sound.out.contains(&format!(r#""check": "{examined}""#)), "{examined} in {}", sound.out);
    }
    let told = mesh.check(&http, &admin, &[]).ok();
    assert!(told.ends_with("nothing is wrong\n"), "{told}");
    assert_eq!(mesh.found("none", "none"), [""; 0]);
    mesh.stop();
}

#[test]
fn check_finds_faults_of_processes_and_machine() {
    let mesh = Sound::start();
    let wrong_clock = page("date: Sat, 01 Jan 2022 00:00:00 GMT\r\n", "ready\n");
    assert_eq!(mesh.found(&wrong_clock, "none"), ["clock"]);
    let damaged = page("", "ready, serving from memory; the store's file is damaged\n");
    assert_eq!(mesh.found(&damaged, "none"), ["control.ready"]);
    let old = page("", r#"{"version":"0.0.1","ready":true}"#);
    assert_eq!(mesh.found("none", &old), ["proxy.version"]);
    assert_eq!(mesh.found("none", &page("", "hello")), ["proxy.foreign"]);

    let open = mesh.dev.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let run = mesh.check("none", "none", &["--json", "--state-dir", open.to_str().unwrap()]);
    assert_eq!(found(&run), ["state.permissions"]);

    let pages =
        ["check", "--json", "--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent"];
    let none = format!("unix:{}", mesh.dev.path("none.sock").display());
    let missing = mesh.dev.run(&[&pages[..], &[&none]].concat());
    assert_eq!(found(&missing), ["agent"]);
    assert!(missing.out.contains("there is no socket"), "{missing:?}");
    let own = [&pages[..], &[&mesh.agent]].concat();
    assert_eq!(found(&Mesh::start().run(&own)), ["agent.store"]);
    let taken = found(&fairmesh(&page("", "hello"), &own, ""));
    assert!(taken == ["control"] || taken == ["control.foreign"], "{taken:?}");
    mesh.stop();
}

#[test]
fn check_finds_agent_without_control_plane() {
    let mut mesh = Mesh::with_shop();
    let metrics = format!("127.0.0.1:{}", free_port());
    let agent = format!("unix:{}", mesh.path("agent.sock").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command.args(["agent", "--region", "eu", "--admin", &metrics, "--listen", &agent, "--state-dir"]);
    command.arg(mesh.path("agent")).args(["--control", &mesh.address()]).env_clear().stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let args = [
        "check",
        "--json",
        "--control-admin",
        "none",
        "--admin",
        "none",
        "--agent-admin",
        &metrics,
        "--agent",
        &agent,
    ];
    let connected = || mesh.run(&args).out.contains("the agent is connected");
    wait_until("the agent is connected", connected);
    mesh.stop_control("KILL");
    let lost = || found(&mesh.run(&args));
    let mut first = Vec::new();
    wait_until("the agent notices", || {
        first = lost();
        first.contains(&"agent.connected".to_owned())
    });
    // The age of the agent's data is reported some seconds later.
    first.retain(|check| check != "agent.age");
    assert_eq!(first, ["control", "agent.connected"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn check_recognizes_suspended_agent() {
    let mesh = Mesh::with_shop();
    let agent = mesh.agent("eu");
    let address = agent.address();
    send(&agent.child, "STOP");
    let ports = ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent", &address];
    let told = mesh.run(&[&["check"], &ports[..]].concat()).out;
    send(&agent.child, "CONT");
    let pid = agent.child.id();
    assert!(told.contains(&format!("process {pid} (\"fairmesh\") is suspended")), "{told}");
    assert!(told.contains(&format!("kill -CONT {pid}")) && !told.contains("another program"), "{told}");
}

/// Records with one fault each.
const FAULTY: &str = "\
kind: Service
name: shop/empty
---
kind: Policy
service: shop/catalog
routes:
  - {name: canary, split: [{service: shop/nowhere, weight: 10}, {service: shop/catalog, weight: 90}]}
---
kind: Policy
service: shop/forgotten
timeout: 5s
";

#[test]
fn check_finds_records_that_make_calls_fail_or_have_no_effect() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-0", "eu", 7000);
    mesh.register("shop/cart", "cart-1", "us", 7001);
    mesh.register("shop/catalog", "catalog-0", "us", 7010);
    let agent = mesh.agent("eu");
    let address = agent.address();
    let check = || {
        found(&mesh.run(&[
            "check",
            "--json",
            "--control-admin",
            "none",
            "--admin",
            "none",
            "--agent-admin",
            "none",
            "--agent",
            &address,
        ]))
    };
    // The shop's own records are correct, and its agent connects.
    wait_until("the shop is sound", || check().is_empty());

    mesh.apply(FAULTY).ok();
    mesh.register("shop/cart", "cart-9", "mars", 7009);
    let mut found = check();
    found.sort();
    assert_eq!(
        found,
        [
            "endpoint.unreachable",
            "policy.undeclared",
            "policy.unknownService",
            "region.undeclared",
            "service.noEndpoints",
        ]
    );
    mesh.run(&["drain", "shop/catalog", "catalog-0"]).ok();
    assert!(check().contains(&"service.notServing".to_owned()));
}

/// Runs `fairmesh check` in new mount and user namespaces after these shell commands; `None` if the machine does not
/// permit that.
fn check_after(commands: &str, mesh: &Mesh, args: &str) -> Option<Run> {
    let binary = env!("CARGO_BIN_EXE_fairmesh");
    let ports = "--control-admin none --admin none --agent-admin none --agent unix:/nowhere.sock";
    let script = format!("{commands}\nexec {binary} check --json {ports} {args}");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec", &script])
        .env("FAIRMESH_CONTROL", mesh.address())
        .output()
        .ok()?;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let run = Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
    // The output is empty if namespaces are not permitted.
    (!run.out.is_empty()).then_some(run)
}

#[test]
fn check_finds_full_disks_and_missing_capabilities() {
    let mesh = Mesh::with_shop();
    let disk = mesh.path("disk");
    fs::create_dir(&disk).unwrap();
    let disk = disk.display();
    let fill = format!(
        "mount -t tmpfs -o size=64m none {disk}\nhead -c 60M /dev/zero > {disk}/records\n\
         mount -t tmpfs none /sys/fs/cgroup\nPATH=/nowhere"
    );
    let Some(run) = check_after(&fill, &mesh, &format!("--state-dir {disk}")) else {
        let how = "this user may not make mount namespaces (unshare --user --map-root-user --mount)";
        return fairmesh_test_support::skipped("a full disk cannot be made", how);
    };
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let finding = |name: &str, level: &str| {
        let checks = report["checks"].as_array().unwrap();
        let found = checks.iter().find(|one| one["check"] == name && one["level"] == level);
        found.unwrap_or_else(|| panic!("no {level} of {name} in {report:#}")).clone()
    };
    let full = finding("disk", "warning");
    assert!(full["message"].as_str().unwrap().contains(&disk.to_string()), "{full}");
    assert!(full["remedy"].as_str().unwrap().contains("make space"), "{full}");
    // The mesh works without these.
    for (ability, remedy) in [
        ("cgroup", "'kernel attach' mounts them"),
        ("nftables", "install nftables"),
        ("ebpf", "fairmesh kernel probe"),
    ] {
        let note = finding(ability, "note");
        assert!(note["remedy"].as_str().unwrap().contains(remedy), "{note}");
        assert!(
            !note["remedy"].as_str().unwrap().contains("mount "),
            "advice that hides controllers: {note}"
        );
    }
    assert_eq!(run.code, Some(1), "{run:?}");
}

#[test]
fn check_finds_sharded_services_without_usable_map() {
    let mesh = Mesh::with_shop();
    mesh.apply("kind: Service\nname: shop/parts\ntype: sharded\n").ok();
    mesh.register("shop/cart", "cart-0", "us", 7000);
    let agent = format!("unix:{}", mesh.path("none.sock").display());
    let ports = ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent", &agent];
    let found = found(&mesh.run(&[&["check", "--json"], &ports[..]].concat()));
    for name in ["shards.missing", "shards.replicas", "agent"] {
        assert!(found.contains(&name.to_owned()), "{name} in {found:?}");
    }
}

#[test]
fn check_names_command_that_deletes_shard_map_without_sharded_service() {
    let mesh = Mesh::with_shop();
    mesh.run(&["delete", "service", "shop/cart"]).ok();
    let ports =
        ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent", "unix:/none"];
    let run = mesh.run(&[&["check", "--json"], &ports[..]].concat());
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let unused = report["checks"].as_array().unwrap().iter().find(|one| one["check"] == "shards.unused");
    let remedy = unused.unwrap_or_else(|| panic!("{report}"))["remedy"].as_str().unwrap();
    assert!(remedy.contains("fairmesh delete shardmap shop/cart"), "{remedy}");
    mesh.run(&["delete", "shardmap", "shop/cart"]).ok();
    let found = found(&mesh.run(&[&["check", "--json"], &ports[..]].concat()));
    assert!(!found.contains(&"shards.unused".to_owned()), "{found:?}");
}
