//! Messages about a shard move that takes long or fails.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, Stdio},
};

use fairmesh_wire::v1::{Endpoint, Location, endpoint::State};

use super::support::Mesh;

/// Starts a move of shard 1 to `to` with `--wait`; returns the process and its messages.
fn start_move(mesh: &Mesh, to: &str) -> (Child, BufReader<ChildStderr>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["shards", "move", "shop/cart", "1", "--from", "cart-1", "--to", to, "--wait"])
        .args(["--control", &mesh.address()])
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let told = BufReader::new(child.stderr.take().unwrap());
    (child, told)
}

fn line(told: &mut BufReader<ChildStderr>) -> String {
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    line
}

#[test]
fn undone_shard_move_reports_its_wait_and_failure() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-1", "us", 7001);
    let endpoint = Endpoint {
        mtls: false,
        instance: "cart-2".into(),
        address: "127.0.0.1:7002".into(),
        location: Some(Location { region: "us".into(), ..Location::default() }),
        state: State::Starting.into(),
        ..Endpoint::default()
    };
    mesh.announce("shop/cart", endpoint);
    let (mut child, mut told) = start_move(&mesh, "cart-2");
    assert_eq!(
        line(&mut told),
        "shard 1 of shop/cart is starting: waiting until 'cart-2' serves and has loaded it\n"
    );
    mesh.run(&["drain", "shop/cart", "cart-2"]).ok();
    let mut complaint = String::new();
    told.read_to_string(&mut complaint).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{complaint}");
    assert!(complaint.contains("was undone: "), "{complaint}");
}

#[test]
fn waiting_shard_move_names_caller_that_has_not_applied_map() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-1", "us", 7001);
    mesh.register("shop/cart", "cart-2", "us", 7002);
    let mut started = None;
    // This program never acknowledges an update.
    mesh.while_watching("/t/shop/shards/", || {
        let (child, mut told) = start_move(&mesh, "cart-2");
        let told = line(&mut told);
        assert!(told.contains("waiting for callers that have not applied the map: test ("), "{told}");
        started = Some(child);
    });
    assert!(started.unwrap().wait().unwrap().success(), "no caller is left to wait for");
}

#[test]
fn shard_copy_is_added_and_dropped_unless_it_is_last() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-1", "us", 7001);
    mesh.register("shop/cart", "cart-2", "us", 7002);
    let add = ["shards", "add", "shop/cart", "1", "--to", "cart-2", "--wait"];
    let drop = |from| mesh.run(&["shards", "drop", "shop/cart", "1", "--from", from, "--wait"]);
    let said = mesh.run(&add).ok();
    assert_eq!(said, "shop/cart: another copy of shard 1 (primary) to cart-2 is done\n");
    drop("cart-1").ok();
    let complaint = drop("cart-2").fails(1);
    assert!(complaint.contains("'cart-2' is the only one that serves shard 1 as primary"), "{complaint}");
    let map = mesh.run(&["shards", "get", "shop/cart", "--json"]).json();
    let copies = map[0]["shards"][1]["replicas"].as_array().unwrap();
    assert!(copies.len() == 1 && copies[0]["instance"] == "cart-2", "{copies:?}");
}

#[test]
fn shards_are_not_balanced_without_load_reports() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-1", "us", 7001);
    let complaint = mesh.run(&["shards", "balance", "shop/cart", "--dry-run"]).fails(1);
    assert!(complaint.contains("the load by shard is known of 0 of 1 servers of shop/cart"), "{complaint}");
    let loads = mesh.run(&["shards", "loads", "shop/cart"]).ok();
    assert!(loads.contains("cart-1") && loads.contains("never, or long ago"), "{loads}");
    let complaint = mesh.run(&["shards", "balance", "shop/cart", "--threshold", "90"]).fails(2);
    assert!(complaint.contains("101..=1000"), "{complaint}");
}
