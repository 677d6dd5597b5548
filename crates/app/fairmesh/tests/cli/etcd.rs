//! Control planes with their store in etcd.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fairmesh_test_support::{Etcd, call_etcd as call};
use serde_json::{Value, json};

use super::support::{Mesh, SHOP, fairmesh, wait_until};

/// A control plane on an etcd.
fn on(etcd: &Etcd) -> Mesh {
    let mut mesh = Mesh::empty();
    mesh.arguments = vec!["--store".into(), format!("etcd://{}/shop", etcd.client())];
    mesh.start_control();
    mesh
}

#[test]
fn applied_records_survive_restart_with_etcd() {
    let etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mut mesh = on(&etcd);
    mesh.apply(SHOP).ok();
    let services = |mesh: &Mesh| mesh.run(&["get", "services", "--json"]).json();
    let before = services(&mesh);
    assert_eq!(before.as_array().unwrap().len(), 2);
    assert_eq!(mesh.stop_control("TERM"), Some(0), "{}", mesh.control_log());
    mesh.start_control();
    assert_eq!(services(&mesh), before);
    assert!(!mesh.path("data/rib.redb").exists() && mesh.path("data/imbalance.redb").exists());
}

#[test]
fn standby_control_plane_takes_over_after_stop_or_death() {
    let etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mut serving = on(&etcd);
    serving.apply(SHOP).ok();
    for (round, signal) in ["TERM", "KILL"].into_iter().enumerate() {
        let mut standby = Mesh::empty();
        standby.arguments = serving.arguments.clone();
        standby.spawn_control();
        wait_until("it stands by", || {
            standby.control_log().contains("another process holds the writer lease")
        });
        serving.apply(&format!("kind: Service\nname: shop/s{round}\n")).ok();
        assert!(!standby.path("control.sock").exists(), "two serve at once");
        serving.stop_control(signal);
        standby.wait_for_control();
        let services = standby.run(&["get", "services", "--json"]).json();
        assert_eq!(services.as_array().unwrap().len(), 3 + round);
        serving = standby;
    }
    let mut idle = Mesh::empty();
    idle.arguments = serving.arguments.clone();
    idle.spawn_control();
    wait_until("it stands by", || idle.control_log().contains("another process holds the writer lease"));
    assert_eq!(idle.stop_control("TERM"), Some(0), "{}", idle.control_log());
}

#[test]
fn control_plane_without_root_of_trust_domain_refuses_to_stand_by() {
    let etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mut first = Mesh::empty();
    let store = format!("etcd://{}/shop", etcd.client());
    first.arguments = ["--store", &store, "--trust-domain", "prod"].map(Into::into).into();
    first.start_control();
    wait_until("the trust domain is recorded", || {
        format!("{:?}", first.run(&["identity", "list"])).contains("joined the trust domain prod")
    });
    let mut standby = Mesh::empty();
    standby.arguments = first.arguments.clone();
    let output = standby.control_command().output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("has a root that is not in"), "{error}");

    // With the root it makes its intermediate before it takes over, and needs the key of the root no longer.
    fs::create_dir_all(standby.path("data/ca")).unwrap();
    for file in ["data/ca/bundle.pem", "data/ca/root.key"] {
        fs::copy(first.path(file), standby.path(file)).unwrap();
    }
    standby.spawn_control();
    wait_until("it stands by", || standby.control_log().contains("another process holds the writer lease"));
    fs::remove_file(standby.path("data/ca/root.key")).unwrap();
    first.stop_control("KILL");
    standby.wait_for_control();
    assert_eq!(standby.run(&["identity", "show", "--json"]).json()["domain"], "prod");
}

#[test]
fn control_plane_serves_during_etcd_outage_and_writes_afterwards() {
    let mut etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mesh = on(&etcd);
    mesh.apply(SHOP).ok();
    etcd.kill();
    assert!(mesh.run(&["get", "services"]).ok().contains("shop/cart"), "what is known is served");
    etcd.restart();
    mesh.apply("kind: Service\nname: shop/after\n").ok();
    assert!(mesh.run(&["get", "services"]).ok().contains("shop/after"));
}

#[test]
fn data_is_reported_stale_once_lease_expires_during_etcd_outage() {
    let mut etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mesh = on(&etcd);
    mesh.apply(SHOP).ok();
    let replica = mesh.replica("below", &mesh.address());
    let ages = || {
        let tree = mesh.run(&["rib", "status", "--json"]).json();
        let servers = tree["servers"].as_array().unwrap();
        servers.iter().map(|server| server["ageMs"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    wait_until("both are in touch", || ages() == [0, 0]);
    etcd.kill();
    wait_until("both are known to age", || ages().iter().filter(|age| **age > 0).count() == 2);
    for address in [mesh.address(), replica.address()] {
        let services = fairmesh(&address, &["get", "services"], "").ok();
        assert!(services.contains("shop/cart"), "what is known is served");
    }
    etcd.restart();
    wait_until("both are in touch again", || ages() == [0, 0]);
    mesh.apply("kind: Service\nname: shop/after\n").ok();
}

#[test]
fn etcd_store_given_new_id_keeps_its_records() {
    let etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mut mesh = on(&etcd);
    mesh.apply(SHOP).ok();
    mesh.stop_control("TERM");
    mesh.arguments.push("--new-store-id".into());
    mesh.start_control();
    assert!(mesh.control_log().contains("new id"), "{}", mesh.control_log());
    assert!(mesh.run(&["get", "services"]).ok().contains("shop/cart"));
}

#[test]
fn services_move_to_another_etcd_without_interruption() {
    let (home, part) = (Etcd::with(&["--max-txn-ops=20003"]), Etcd::with(&["--max-txn-ops=20003"]));
    let into = format!("etcd://{}/shop", part.client());
    let mut mesh = on(&home);
    mesh.apply(SHOP).ok();
    let split = |mesh: &Mesh, more: &[&str]| {
        mesh.run(&[&["rib", "split", "--into", &into, "--services", "shop/cart"], more].concat())
    };
    let refusal = split(&mesh, &[]).fails(1);
    assert!(refusal.contains("--partitioned"), "{refusal}");
    assert_eq!(mesh.stop_control("TERM"), Some(0));
    mesh.arguments.push("--partitioned".into());
    mesh.start_control();
    mesh.arguments.pop();
    let export = mesh.path("export").display().to_string();
    mesh.run(&["rib", "export", &export]).ok();

    let asked = split(&mesh, &["--dry-run", "--json"]).json();
    assert_eq!((&asked["services"], &asked["to"], &asked["heldMs"]), (&1.into(), &1.into(), &0.into()));
    let moved = split(&mesh, &["--json"]).json();
    assert_eq!((&moved["records"], &moved["verified"]), (&asked["records"], &asked["records"]));
    assert_eq!(moved["version"], 2);
    mesh.run(&["rib", "verify", &export]).ok();
    // One service is in the other etcd, the other at home; both are applied in one command.
    mesh.apply("kind: Service\nname: shop/other\n---\nkind: Policy\nservice: shop/cart\ntimeout: 4s\n").ok();
    let services = |mesh: &Mesh| mesh.run(&["get", "services", "--json"]).json();
    let before = services(&mesh);
    assert_eq!(mesh.stop_control("TERM"), Some(0), "{}", mesh.control_log());
    mesh.start_control();
    assert_eq!(services(&mesh), before);
    mesh.run(&["rib", "verify"]).ok();

    // Into a new store that may be partitioned from the start.
    let mut other = Mesh::empty();
    let address = format!("etcd://{}/other", part.client());
    other.arguments = ["--store", &address, "--partitioned"].map(Into::into).into();
    other.start_control();
    other.run(&["rib", "import", &export]).ok();
    other.run(&["rib", "verify", &export]).ok();
}

#[test]
fn invalid_etcd_arguments_are_refused_before_start() {
    let mut mesh = Mesh::empty();
    let mut refused = |arguments: &[&str]| {
        mesh.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let output = mesh.control_command().output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--store", "redis://a"]).contains("etcd://host:2379"));
    assert!(refused(&["--etcd-ca", "ca.pem"]).contains("--store"));
    assert!(refused(&["--store", "etcd://a", "--etcd-key", "k"]).contains("--etcd-cert"));
    assert!(refused(&["--store", "etcd://a", "--etcd-user", "u"]).contains("FAIRMESH_ETCD_PASSWORD"));
}

/// Response of the control plane to `GET /readyz`; empty until it serves.
fn ready(mesh: &Mesh) -> String {
    let log = mesh.control_log();
    let Some(line) = log.lines().find(|line| line.contains("serving HTTP")) else { return String::new() };
    let port = line.split("127.0.0.1:").nth(1).unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// Fills an etcd with a key outside any store; returns a function that frees the space.
fn fill(etcd: &Etcd) -> impl FnOnce() + use<> {
    let key = BASE64_STANDARD.encode("filler");
    let put = json!({"key": key, "value": BASE64_STANDARD.encode([7; 100_000])}).to_string();
    // etcd updates its size only now and then.
    let client = etcd.client();
    wait_until("etcd is full", || call(&client, "kv/put", &put).is_err());
    move || {
        let post = |path: &str, body: Value| call(&client, path, &body.to_string()).unwrap();
        let range = post("kv/range", json!({"key": key, "keys_only": true}));
        let revision = range.split_once("\"revision\":\"").unwrap().1.split_once('"').unwrap().0;
        post("kv/compaction", json!({"revision": revision, "physical": true}));
        post("maintenance/defragment", json!({}));
        let member = range.split_once("\"member_id\":\"").unwrap().1.split_once('"').unwrap().0;
        post("maintenance/alarm", json!({"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member}));
    }
}

#[test]
fn control_plane_with_full_or_stopped_etcd_is_unready_but_readable() {
    let mut etcd = Etcd::with(&["--max-txn-ops=10001", "--quota-backend-bytes=3000000"]);
    let mut mesh = on(&etcd);
    mesh.apply(SHOP).ok();
    assert!(ready(&mesh).starts_with("HTTP/1.1 200"));
    let empty = fill(&etcd);
    wait_until("a full store is not ready", || ready(&mesh).starts_with("HTTP/1.1 503"));
    assert!(ready(&mesh).contains("etcd's database is full"), "{}", ready(&mesh));

    assert_eq!(mesh.stop_control("TERM"), Some(0), "{}", mesh.control_log());
    mesh.start_control();
    assert!(mesh.run(&["get", "services"]).ok().contains("shop/cart"), "what is known is served");
    assert!(ready(&mesh).starts_with("HTTP/1.1 503"), "{}", ready(&mesh));
    mesh.apply("kind: Service\nname: shop/late\n").fails(1);
    empty();
    wait_until("it is ready again", || ready(&mesh).starts_with("HTTP/1.1 200"));
    wait_until("it writes", || mesh.apply("kind: Service\nname: shop/late\n").code == Some(0));

    etcd.kill();
    wait_until("a stopped store is not ready", || ready(&mesh).starts_with("HTTP/1.1 503"));
    etcd.restart();
    wait_until("it is ready again", || ready(&mesh).starts_with("HTTP/1.1 200"));
}

#[test]
fn readiness_page_names_hanging_etcd_before_check_gives_up() {
    let etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mesh = on(&etcd);
    wait_until("it is ready", || ready(&mesh).starts_with("HTTP/1.1 200"));
    let signal = |signal: &str| {
        let pid = etcd.pid().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    let is_unready = || {
        #[allow(clippy::disallowed_methods, reason = "a real page of a real process")]
        let asked = Instant::now();
        let page = ready(&mesh);
        // 'fairmesh check' and other readers wait for 3 s.
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}: {page}");
        page.contains("no member of etcd responds within 1.5s")
    };
    wait_until("the page names etcd", is_unready);
    signal("-CONT");
    wait_until("it is ready again", || ready(&mesh).starts_with("HTTP/1.1 200"));
}
