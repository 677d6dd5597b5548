//! Replica processes between a control plane and agents.

use super::support::{Mesh, fairmesh, send, wait_until};

#[test]
fn writes_are_readable_below_two_replicas_after_control_plane_stops() {
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
    assert_eq!(at(&root.address()), written, "from disk, without an upstream");
    assert!(endpoints().contains("catalog-0"), "from memory, without an upstream");
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/search\n").ok();
    wait_until("what is written later arrives", || at(&agent.address()) == at(&mesh.address()));
}

#[test]
fn replica_without_upstream_is_refused() {
    let complaint = fairmesh("", &["rib", "replica"], "").fails(2);
    assert!(complaint.contains("--upstream"), "{complaint}");
}

#[test]
fn rib_status_names_every_process_and_marks_lagging_ones() {
    let mesh = Mesh::with_shop();
    let root = mesh.replica("root", &mesh.address());
    let region = mesh.replica("region", &root.address());
    let agent = mesh.agent_at("eu", &region.address());
    // An agent follows nothing before a program asks for records.
    fairmesh(&agent.address(), &["get", "services"], "").ok();
    let status = |args: &[&str]| mesh.run(&[&["rib", "status"], args].concat());
    let named = |list: &serde_json::Value, name: &str| {
        list.as_array().unwrap().iter().find(|one| one["name"].as_str().unwrap().starts_with(name)).cloned()
    };
    let mut tree = serde_json::Value::Null;
    wait_until("all have what there is", || {
        tree = status(&["--json"]).json();
        let agent = named(&tree["watchers"], "agent");
        let current = |name| {
            named(&tree["servers"], name)
                .is_some_and(|one| one["lag"] == 0 && one["ageMs"] == 0 && one["watchers"] == 1)
        };
        agent.is_some_and(|one| one["lag"] == 0) && current("replica root") && current("replica region")
    });
    let agent = named(&tree["watchers"], "agent").unwrap();
    assert_eq!((&agent["kind"], &agent["region"]), (&"agent".into(), &"eu".into()), "{agent}");
    assert!(agent["follows"].as_str().unwrap().starts_with("replica region"), "{agent}");
    let below = named(&tree["servers"], "replica region").unwrap();
    assert!(below["follows"].as_str().unwrap().starts_with("replica root"), "{below}");
    wait_until("the summary says so", || {
        status(&[]).ok().contains("replicas: 2; agents and programs behind: 0 of 1")
    });
    assert!(status(&["--by", "replica"]).ok().contains("control plane"));

    // A program that never acknowledges an update.
    mesh.while_watching("/t/shop/", || {
        let text = status(&["--by", "region"]).ok();
        assert!(text.contains("agents and programs behind: 1 of 2"), "{text}");
        assert!(text.contains(": test, below control plane"), "{text}");
    });
    drop(region);
    wait_until("the root knows that the region is gone", || {
        status(&["--json"]).json()["servers"].as_array().unwrap().len() == 2
    });
}
