//! Replicas as processes, between a control plane and agents.

use super::support::{Mesh, fairmesh, send, wait_until};

#[test]
fn what_is_written_at_the_control_plane_is_read_below_two_replicas_and_survives_it() {
    let mut mesh = Mesh::with_shop();
    let mut root = mesh.replica("root", &mesh.address());
    let region = mesh.replica("region", &root.address());
    let agent = mesh.agent_at("eu", &region.address());
    let at = |address: &str| fairmesh(address, &["get", "services", "--json"], "").json();
    let written = at(&mesh.address());
    for address in [root.address(), region.address(), agent.address()] {
        assert_eq!(at(&address), written, "at {address}");
    }
    mesh.register("shop/catalog", "catalog-0", "eu", 9000);
    let endpoints = || fairmesh(&region.address(), &["get", "endpoints", "shop/catalog"], "").ok();
    wait_until("the endpoint is known below", || endpoints().contains("catalog-0"));

    let written = at(&mesh.address());
    assert_eq!(mesh.stop_control("KILL"), None);
    send(&root.child, "TERM");
    assert_eq!(root.child.wait().unwrap().code(), Some(0));
    drop(root);
    let root = mesh.replica("root", &mesh.address());
    assert_eq!(at(&root.address()), written, "from disk, with nobody above");
    assert!(endpoints().contains("catalog-0"), "from memory, with nobody above");
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/search\n").ok();
    wait_until("what is written later arrives", || at(&agent.address()) == at(&mesh.address()));
}

#[test]
fn a_replica_that_is_told_to_follow_nobody_is_refused() {
    let complaint = fairmesh("", &["rib", "replica"], "").fails(2);
    assert!(complaint.contains("--upstream"), "{complaint}");
}
