//! Control planes whose store is in etcd.

use super::support::{Mesh, SHOP, wait_until};
use crate::real_etcd::Etcd;

/// A control plane on an etcd.
fn on(etcd: &Etcd) -> Mesh {
    let mut mesh = Mesh::empty();
    mesh.arguments = vec!["--store".into(), format!("etcd://{}/shop", etcd.client())];
    mesh.start_control();
    mesh
}

#[test]
fn what_was_applied_is_there_after_a_restart_and_for_another_control_plane() {
    let etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let mut mesh = on(&etcd);
    mesh.apply(SHOP).ok();
    let services = |mesh: &Mesh| mesh.run(&["get", "services", "--json"]).json();
    let before = services(&mesh);
    assert_eq!(before.as_array().unwrap().len(), 2);
    assert_eq!(mesh.stop_control("TERM"), Some(0), "{}", mesh.control_log());
    mesh.start_control();
    assert_eq!(services(&mesh), before);

    // What one of two writes, the other is told by etcd.
    let other = on(&etcd);
    assert_eq!(services(&other), before);
    other.apply("kind: Service\nname: shop/new\n").ok();
    wait_until("the first hears of it", || services(&mesh).as_array().unwrap().len() == 3);
    mesh.apply("kind: Service\nname: shop/newer\n").ok();
    wait_until("the other hears of it", || services(&other) == services(&mesh));
    assert!(!mesh.path("data/rib.redb").exists() && mesh.path("data/imbalance.redb").exists());
}

#[test]
fn a_control_plane_serves_through_an_outage_of_etcd_and_writes_after_it() {
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
fn a_store_given_a_new_id_keeps_its_records() {
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
fn wrong_arguments_of_etcd_are_refused_before_anything_starts() {
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
