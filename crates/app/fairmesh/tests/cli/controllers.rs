//! Controllers of a control plane, as operators see them.

use std::process::Stdio;

use serde_json::{Value, json};

use super::{
    identities::domain,
    support::{Mesh, wait_until},
};

/// Registers a service with an endpoint for which other regions can report round-trip times.
fn serve_catalog(mesh: &Mesh) {
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    mesh.register("shop/catalog", "one", "eu", 19_500);
}

fn controllers(mesh: &Mesh) -> Vec<Value> {
    mesh.run(&["control", "status", "--json"]).json().as_array().unwrap().clone()
}

fn controller(mesh: &Mesh, name: &str) -> Value {
    controllers(mesh).into_iter().find(|one| one["name"] == name).unwrap()
}

const PUBLISHED: &str = "publish 1 targets of measured distances in 1 regions";

#[test]
fn control_status_shows_last_round_of_each_controller() {
    let mesh = Mesh::start();
    serve_catalog(&mesh);
    wait_until("targets are published", || {
        let targets = controller(&mesh, "distance-targets");
        targets["changedAgoMs"].is_u64() && targets["state"] == "waiting"
    });
    let names: Vec<_> = controllers(&mesh).iter().map(|one| one["name"].clone()).collect();
    assert_eq!(
        names,
        [
            "distance-targets",
            "drains",
            "federated-bundles",
            "placement",
            "planner",
            "quotas",
            "token-issuers",
            "verdicts"
        ]
    );
    let targets = controller(&mesh, "distance-targets");
    assert_eq!((&targets["nextInMs"], &targets["shadow"]), (&Value::Null, &json!(false)));
    assert_eq!(
        (&targets["consecutiveFailures"], &targets["lastRound"]["problem"]),
        (&json!(0), &Value::Null)
    );
    let verdicts = controller(&mesh, "verdicts");
    assert!(verdicts["nextInMs"].as_u64().unwrap() <= 5_000, "{verdicts}");
    let table = mesh.run(&["control", "status"]).ok();
    let row = table.lines().find(|line| line.starts_with("distance-targets")).unwrap();
    assert!(row.contains("waiting") && row.contains("on change"), "{table}");
}

#[test]
fn control_status_shows_intended_changes_of_shadow_mode_controller() {
    let mut mesh = Mesh::empty();
    mesh.arguments.extend(["--shadow-controller", "distance-targets"].map(String::from));
    mesh.start_control();
    serve_catalog(&mesh);
    wait_until("the targets are decided", || {
        controller(&mesh, "distance-targets")["lastRound"]["decided"] == json!([PUBLISHED])
    });
    let targets = controller(&mesh, "distance-targets");
    assert_eq!((&targets["shadow"], &targets["lastRound"]["effects"]), (&json!(true), &json!(0)));
    assert_eq!(targets["changedAgoMs"], Value::Null);
    let table = mesh.run(&["control", "status"]).ok();
    assert!(table.contains("waiting, shadow") && table.contains(PUBLISHED), "{table}");
}

#[test]
fn shadow_mode_is_refused_for_security_controllers() {
    let mesh = Mesh::empty();
    let mut command = mesh.control_command();
    let output = command.args(["--shadow-controller", "revocations"]).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains(
            "distance-targets, drains, federated-bundles, placement, planner, token-issuers, verdicts"
        ),
        "{error}"
    );
}

#[test]
fn controllers_record_roots_and_revocations_of_trust_domain() {
    let (mesh, _) = domain();
    wait_until("the roots are recorded", || controller(&mesh, "trust-bundle")["writes"] == 1);
    assert_eq!(controller(&mesh, "revocations")["changedAgoMs"], Value::Null);
    mesh.run(&["identity", "revoke", "shop/catalog"]).ok();
    wait_until("the revocation is in force", || controller(&mesh, "revocations")["changedAgoMs"].is_u64());
    let log = mesh.run(&["audit", "--key", "/g/identity/bundle", "--json"]).ok();
    assert!(log.contains("control plane for controller trust-bundle"), "{log}");
}

#[test]
fn refused_issuer_file_is_shown_until_replaced() {
    let (mesh, _) = domain();
    let file = mesh.path("data/ca/issuer.key");
    let good = std::fs::read(&file).unwrap();
    std::fs::write(&file, "half of a file").unwrap();
    wait_until("the file is refused", || {
        let refused = &controller(&mesh, "issuer-file")["lastRound"]["refused"][0];
        refused["subject"] == "ca/issuer.key" && refused["reason"].as_str().unwrap().contains("is not used")
    });
    std::fs::write(&file, good).unwrap();
    wait_until("the intermediate is used again", || {
        controller(&mesh, "issuer-file")["lastRound"]["refused"] == json!([])
    });
}
