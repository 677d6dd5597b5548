//! Backends of a gateway and the services on them, as operators write and see them.

use serde_json::{Value, json};

use super::support::{Mesh, wait_until};

const BACKENDS: &str = "\
{kind: GatewayBackend, name: one, zone: a, replicas: ['10.0.0.1:7440', '10.0.0.2:7440']}
---
{kind: GatewayBackend, name: two, zone: a, replicas: ['10.0.0.3:7440']}
---
{kind: GatewayBackend, name: three, zone: b, capacity: 1, replicas: ['10.0.0.4:7440']}
";

const SERVICES: &str = "\
{kind: Service, name: red/api}
---
{kind: GatewayService, service: red/api, homeZone: a}
---
{kind: Service, name: red/web}
---
{kind: GatewayService, service: red/web, homeZone: a}
";

fn placement(mesh: &Mesh, service: &str) -> Value {
    mesh.run(&["get", "gateway-services", service, "--json"]).json()[0]["placement"].clone()
}

/// Services that the placement controller refuses, with the reasons.
fn refused(mesh: &Mesh) -> Vec<Value> {
    let controllers = mesh.run(&["control", "status", "--json"]).json();
    let all = controllers.as_array().unwrap();
    let placement = all.iter().find(|one| one["name"] == "placement").unwrap();
    placement["lastRound"]["refused"].as_array().cloned().unwrap_or_default()
}

#[test]
fn gateway_services_are_placed_and_refusals_name_missing_backends() {
    let mesh = Mesh::start();
    mesh.apply(BACKENDS).ok();
    mesh.apply(SERVICES).ok();
    // Zone b has room for one service.
    let zones = json!({ "a": ["one", "two"], "b": ["three"] });
    let placed = json!({ "homeZone": "a", "zones": zones, "added": 0 });
    wait_until("the first is placed", || placement(&mesh, "red/api") == placed);
    wait_until("the second is refused", || !refused(&mesh).is_empty());
    let [refusal] = &refused(&mesh)[..] else { panic!("one is refused") };
    assert_eq!(refusal["subject"], "placement of red/web");
    assert!(refusal["reason"].as_str().unwrap().starts_with("no zone but a has"), "{refusal}");
    assert_eq!(placement(&mesh, "red/web"), Value::Null);
    let status = mesh.run(&["gateway", "status"]).ok();
    for text in ["a: one, two; b: three", "10.0.0.1:7440, 10.0.0.2:7440", "red/web", "no zone but a has"] {
        assert!(status.contains(text), "{text}: {status}");
    }
    let status = mesh.run(&["gateway", "status", "--json"]).json();
    assert_eq!((&status[0]["backend"], &status[0]["services"]), (&json!("one"), &json!(1)), "{status}");

    // With room, the service is placed, and the first one stays where it is. Both use the same zones, so another
    // backend is needed.
    let more = "{kind: GatewayBackend, name: four, zone: b, replicas: ['10.0.0.5:7440']}\n";
    assert!(mesh.run(&["get", "gateway-backends"]).ok().contains("three"));
    mesh.apply(more).ok();
    wait_until("the second is placed", || placement(&mesh, "red/web")["zones"]["b"] == json!(["four"]));
    assert_eq!(placement(&mesh, "red/api"), placed);
    wait_until("nothing is refused", || refused(&mesh).is_empty());

    mesh.run(&["delete", "gateway-service", "red/web"]).ok();
    wait_until("its placement is gone", || {
        let backends = mesh.run(&["get", "gateway-backends", "--json"]).json();
        backends.as_array().unwrap().iter().any(|one| one["name"] == "four" && one["services"] == 0)
    });
}

#[test]
fn gateway_documents_survive_round_trip_and_invalid_ones_are_refused() {
    let mesh = Mesh::start();
    mesh.apply(BACKENDS).ok();
    let yaml = mesh.run(&["get", "gateway-backends", "-o", "yaml"]).ok();
    let file = mesh.file("backends.yaml", &yaml);
    assert_eq!(mesh.run(&["diff", "-f", &file]).ok().trim(), "", "{yaml}");
    mesh.apply("{kind: GatewayQuota, tenant: red, requests: 500, routes: 2000}").ok();
    let yaml = mesh.run(&["get", "gateway-quotas", "-o", "yaml"]).ok();
    let file = mesh.file("quotas.yaml", &yaml);
    assert_eq!(mesh.run(&["diff", "-f", &file]).ok().trim(), "", "{yaml}");
    assert!(mesh.run(&["get", "gateway-quotas"]).ok().contains("2000"));
    for (document, problem) in [
        ("{kind: GatewayBackend, name: x, zone: a, replicas: []}", "replicas"),
        ("{kind: GatewayBackend, name: x, zone: a, capacity: 0, replicas: ['10.0.0.1:1']}", "capacity"),
        ("{kind: GatewayBackend, name: x, zone: a, replicas: ['0.0.0.0:7440']}", "replicas"),
        ("{kind: GatewayService, service: red/web, homeZone: a, backends: 2}", "backends"),
        ("{kind: GatewayService, service: red/web}", "homeZone"),
        ("{kind: GatewayQuota, tenant: red}", "limits nothing"),
        ("{kind: GatewayQuota, tenant: red, requests: 0}", "requests"),
        ("{kind: GatewayQuota, tenant: red, services: 65537}", "services"),
        ("{kind: GatewayQuota, tenant: fairmesh, routes: 1}", "tenant"),
    ] {
        let refused = mesh.apply(document).fails(2);
        assert!(refused.contains(problem), "{document}: {refused}");
    }
}
