//! The control plane as a process: stops, crashes, and stores that it must not touch.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    check::found,
    identities::{Killed, has_certificate},
    support::{Mesh, contents, fairmesh, send, wait_until},
};

#[test]
fn control_plane_stops_cleanly_and_keeps_records() {
    let mut mesh = Mesh::with_shop();
    let before = mesh.run(&["get", "services", "--json"]).json();
    assert_eq!(mesh.stop_control("TERM"), Some(0), "{}", mesh.control_log());
    mesh.start_control();
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), before);
    assert_eq!(mesh.stop_control("INT"), Some(0));
}

#[test]
fn acknowledged_writes_survive_crash() {
    let mut mesh = Mesh::start();
    for round in 0..3 {
        mesh.apply(&format!("kind: Service\nname: shop/s{round}\n")).ok();
        assert_eq!(mesh.stop_control("KILL"), None);
        mesh.start_control();
        let services = mesh.run(&["get", "services", "--json"]).json();
        assert_eq!(services.as_array().unwrap().len(), round + 1);
    }
}

#[test]
fn copy_of_data_directory_is_usable_backup() {
    let mut mesh = Mesh::with_shop();
    let before = mesh.run(&["get", "services", "--json"]).json();
    mesh.stop_control("TERM");
    let (data, copy) = (mesh.path("data"), mesh.path("backup"));
    fs::create_dir(&copy).unwrap();
    fs::copy(data.join("rib.redb"), copy.join("rib.redb")).unwrap();
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/later\n").ok();
    mesh.stop_control("KILL");

    fs::remove_dir_all(&data).unwrap();
    fs::rename(&copy, &data).unwrap();
    mesh.arguments = vec!["--new-store-id".into()];
    mesh.start_control();
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), before);
    assert!(mesh.control_log().contains("the store has a new id"), "{}", mesh.control_log());
}

#[test]
fn restored_store_is_distinguished_from_original() {
    let mut mesh = Mesh::with_shop();
    mesh.stop_control("TERM");
    let (data, copy) = (mesh.path("data"), mesh.path("rib.copy"));
    let (store, log, log_copy) = (data.join("rib.redb"), data.join("audit.log"), mesh.path("audit.copy"));
    fs::copy(&store, &copy).unwrap();
    mesh.start_control();
    let replica = mesh.replica("root", &mesh.address());
    for seconds in 20..23 {
        mesh.apply(&format!("kind: Policy\nservice: shop/catalog\ntimeout: {seconds}s\n")).ok();
    }
    let has = |timeout: &str| {
        let read = fairmesh(&replica.address(), &["get", "policies", "shop/catalog", "--json"], "");
        // The replica answers with an error until it has all records.
        let policies = serde_json::from_str::<serde_json::Value>(&read.out).unwrap_or_default();
        policies[0]["timeout"] == timeout
    };
    wait_until("the replica has the last write", || has("22s"));
    mesh.stop_control("TERM");

    fs::copy(&copy, &store).unwrap();
    let complaint = refused(&mesh);
    assert!(complaint.contains("audit.log") && complaint.contains("--new-store-id"), "{complaint}");
    assert_eq!(fs::read(&store).unwrap().len(), fs::read(&copy).unwrap().len());

    // Without the log of writes, the readers reveal that the store was replaced.
    fs::rename(&log, &log_copy).unwrap();
    mesh.start_control();
    let is_behind = |mesh: &Mesh| {
        let none = [
            "--control-admin",
            "none",
            "--admin",
            "none",
            "--agent-admin",
            "none",
            "--agent",
            "unix:/nowhere.sock",
        ];
        found(&mesh.run(&[&["check", "--json"][..], &none].concat())).contains(&"control.behind".to_owned())
    };
    wait_until("the reader ahead is found", || is_behind(&mesh));
    mesh.stop_control("TERM");

    fs::rename(&log_copy, &log).unwrap();
    mesh.arguments = vec!["--new-store-id".into()];
    mesh.start_control();
    wait_until("the reader took a snapshot", || has("5s"));
    assert!(!is_behind(&mesh));
    mesh.stop_control("TERM");
    // A log of the store's former id must not cause a refusal.
    mesh.arguments.clear();
    mesh.start_control();
}

/// Starts a control plane that must refuse; returns its error text.
fn refused(mesh: &Mesh) -> String {
    let output = mesh.control_command().stdout(Stdio::null()).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    complaint
}

#[test]
fn corrupt_store_is_refused_with_path_and_left_unchanged() {
    let mut mesh = Mesh::with_shop();
    mesh.stop_control("TERM");
    let store = contents(&mesh.path("data")).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap().0;
    fs::write(&store, b"these bytes are not a store").unwrap();
    let before = contents(&mesh.path("data"));
    let complaint = refused(&mesh);
    assert!(complaint.contains(store.to_str().unwrap()), "{complaint}");
    assert_eq!(contents(&mesh.path("data")), before);
}

#[test]
fn store_in_use_is_refused() {
    let mesh = Mesh::with_shop();
    let complaint = refused(&mesh);
    assert!(
        complaint.contains(mesh.path("data").to_str().unwrap()) || complaint.contains("control.sock"),
        "{complaint}"
    );
    assert!(mesh.run(&["get", "services"]).ok().contains("shop/cart"), "the first one is undisturbed");
}

#[test]
fn agent_starts_without_control_plane_and_ends_on_signal() {
    let mesh = Mesh::empty();
    let mut agent = mesh.agent("eu");
    let version = fairmesh(&agent.address(), &["history", "policy", "shop/cart"], "");
    assert!(version.fails(1).contains("--control"), "an agent says that it is not the control plane");
    send(&agent.child, "TERM");
    assert_eq!(agent.child.wait().unwrap().code(), Some(0));
}

#[test]
fn control_plane_without_admin_pages_serves_records() {
    let mesh = Mesh::empty();
    let log = mesh.path("control.log");
    let mut control = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    control.args(["control", "--admin", "none", "--trust-domain", "none", "--grpc", &mesh.address()]);
    control.arg("--data-dir").arg(mesh.path("data")).env_clear().stderr(fs::File::create(&log).unwrap());
    let _control = Killed(control.spawn().unwrap());
    wait_until("it serves records", || mesh.run(&["get", "services", "--json"]).code == Some(0));
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("serving gRPC") && !log.contains("serving HTTP"), "{log}");
}

/// Starts an agent of these control planes that logs to the file.
fn logging_agent(mesh: &Mesh, control_planes: &str, log: &Path) -> Killed {
    let socket = format!("unix:{}", mesh.path("agent.sock").display());
    let mut agent = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    agent.args([
        "agent",
        "--name",
        "web-1",
        "--region",
        "eu",
        "--admin",
        "none",
        "--control",
        control_planes,
    ]);
    agent.args(["--listen", &socket, "--state-dir"]).arg(mesh.path("web-1"));
    agent.env_clear().stderr(fs::File::create(log).unwrap());
    Killed(agent.spawn().unwrap())
}

#[test]
fn agent_warns_only_if_no_control_plane_responds() {
    let mut mesh = Mesh::start();
    let log = mesh.path("agent.log");
    let control_planes = format!("unix:{},{}", mesh.path("none.sock").display(), mesh.address());
    let _agent = logging_agent(&mesh, &control_planes, &log);
    let says = |what: &str| fs::read_to_string(&log).unwrap().contains(what);
    wait_until("it follows the second one", || says(&format!("following address={}", mesh.address())));
    assert!(!says("no upstream"), "{}", fs::read_to_string(&log).unwrap());
    mesh.stop_control("TERM");
    wait_until("it says that it lost it", || says("lost the connection to the upstream"));
}

#[test]
fn agent_started_before_control_plane_joins_without_warning() {
    let mut mesh = Mesh::empty();
    #[allow(clippy::disallowed_methods, reason = "a real agent waits for a real control plane")]
    let began = Instant::now();
    mesh.arguments = ["--trust-domain", "prod"].map(String::from).to_vec();
    let log = mesh.path("agent.log");
    let _agent = logging_agent(&mesh, &mesh.address(), &log);
    let logged = || fs::read_to_string(&log).unwrap();
    wait_until("it finds none", || logged().contains("no upstream responds yet"));
    mesh.start_control();
    wait_until("it joins", || has_certificate(&mesh, "web-1") && logged().contains("following address="));
    // A busy machine may start the control plane so late that a warning is right.
    let is_late = began.elapsed() >= Duration::from_secs(5);
    assert!(is_late || !["WARN", "ERROR"].iter().any(|level| logged().contains(level)), "{}", logged());
}
