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
    let placed =
        json!({ "homeZone": "a", "zones": zones, "added": 0, "pinned": null, "connectionLimit": null });
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
    mesh.apply("{kind: Service, name: red/web}").ok();
    mesh.apply("{kind: GatewayService, service: red/web, homeZone: a, growth: off, throttle: agreed}").ok();
    let yaml = mesh.run(&["get", "gateway-services", "-o", "yaml"]).ok();
    assert!(yaml.contains("growth") && yaml.contains("throttle: agreed"), "{yaml}");
    let file = mesh.file("services.yaml", &yaml);
    assert_eq!(mesh.run(&["diff", "-f", &file]).ok().trim(), "", "{yaml}");
    for (document, problem) in [
        ("{kind: GatewayBackend, name: x, zone: a, replicas: []}", "replicas"),
        ("{kind: GatewayBackend, name: x, zone: a, capacity: 0, replicas: ['10.0.0.1:1']}", "capacity"),
        ("{kind: GatewayBackend, name: x, zone: a, replicas: ['0.0.0.0:7440']}", "replicas"),
        ("{kind: GatewayService, service: red/web, homeZone: a, backends: 2}", "backends"),
        ("{kind: GatewayService, service: red/web}", "homeZone"),
        ("{kind: GatewayService, service: red/web, homeZone: a, growth: maybe}", "growth"),
        ("{kind: GatewayService, service: red/web, homeZone: a, throttle: always}", "throttle"),
        ("{kind: GatewayQuota, tenant: red}", "limits nothing"),
        ("{kind: GatewayQuota, tenant: red, requests: 0}", "requests"),
        ("{kind: GatewayQuota, tenant: red, services: 65537}", "services"),
        ("{kind: GatewayQuota, tenant: fairmesh, routes: 1}", "tenant"),
    ] {
        let refused = mesh.apply(document).fails(2);
        assert!(refused.contains(problem), "{document}: {refused}");
    }
}

/// Backends with room for several combinations of a service, and one closed backend.
const FURTHER: &str = "\
{kind: GatewayBackend, name: three, zone: b, replicas: ['10.0.0.4:7440']}
---
{kind: GatewayBackend, name: four, zone: b, replicas: ['10.0.0.5:7440']}
---
{kind: GatewayBackend, name: five, zone: a, replicas: ['10.0.0.6:7440']}
---
{kind: GatewayBackend, name: six, zone: a, closed: true, replicas: ['10.0.0.7:7440']}
";

/// The backends of a service, as `--to` takes them.
fn backends_of(mesh: &Mesh, service: &str) -> String {
    let zones = placement(mesh, service)["zones"].as_object().cloned().unwrap_or_default();
    let names = zones.values().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    names.collect::<Vec<_>>().join(",")
}

#[test]
fn operator_places_a_service_and_the_controller_leaves_it_there() {
    let mesh = Mesh::start();
    mesh.apply(BACKENDS).ok();
    mesh.apply(FURTHER).ok();
    mesh.apply(SERVICES).ok();
    wait_until("both are placed", || {
        ["red/api", "red/web"].iter().all(|service| !backends_of(&mesh, service).is_empty())
    });
    let of_web = backends_of(&mesh, "red/web");
    let before = placement(&mesh, "red/api");
    for (to, problem) in [
        ("one,two,x", "there is no backend x"),
        ("one,six,four", "backend six is closed"),
        ("one,four", "fewer than 2 of the backends are in the home zone a"),
        ("one,two", "in a zone other than a"),
        (of_web.as_str(), "all of these backends serve red/web too"),
    ] {
        let refused = mesh.run(&["gateway", "move", "red/api", "--to", to]).fails(2);
        assert!(refused.contains(problem), "{to}: {refused}");
    }
    assert!(mesh.run(&["gateway", "move", "red/none", "--to", "one"]).fails(2).contains("uses no gateway"));
    assert!(mesh.run(&["gateway", "move", "red/api", "--unpin"]).fails(2).contains("places red/api already"));
    let of_api = backends_of(&mesh, "red/api");
    let free = ["one,two,four", "one,five,four", "two,five,four"];
    let to = free.into_iter().find(|to| **to != of_web && **to != of_api).unwrap();
    let dry = mesh.run(&["gateway", "move", "red/api", "--to", to, "--dry-run"]).ok();
    assert!(dry.contains("red/api would be placed on") && placement(&mesh, "red/api") == before, "{dry}");
    let moved = mesh.run(&["gateway", "move", "red/api", "--to", to, "--reason", "drill", "--json"]).json();
    assert_eq!((&moved["pinned"], &moved["endsConnections"]), (&json!(true), &json!(false)), "{moved}");
    // The service asks for more backends, and another backend comes.
    mesh.apply("{kind: GatewayService, service: red/api, homeZone: a, backends: 4}").ok();
    mesh.apply("{kind: GatewayBackend, name: seven, zone: b, replicas: ['10.0.0.8:7440']}").ok();
    let sorted = |names: &str| {
        let mut names: Vec<String> = names.split(',').map(str::to_owned).collect();
        names.sort();
        names
    };
    for text in [mesh.run(&["gateway", "status"]).ok(), mesh.run(&["gateway", "explain", "red/api"]).ok()] {
        assert!(text.contains("an operator placed it") && text.contains("it stays there: drill"), "{text}");
    }
    assert_eq!(sorted(&backends_of(&mesh, "red/api")), sorted(to));
    mesh.run(&["gateway", "move", "red/api", "--unpin"]).ok();
    assert_eq!(placement(&mesh, "red/api")["pinned"], Value::Null);
    assert!(mesh.run(&["audit", "--key", "/t/red/placements/api", "--json"]).ok().contains("drill"));
}

#[test]
fn operator_limits_new_connections_of_a_service() {
    let mesh = Mesh::start();
    mesh.apply(BACKENDS).ok();
    let throttle =
        |arguments: &[&str]| mesh.run(&[&["gateway", "throttle", "red/api"][..], arguments].concat());
    assert!(throttle(&["--connections", "60"]).fails(2).contains("uses no gateway"));
    mesh.apply(SERVICES).ok();
    wait_until("the service is placed", || !backends_of(&mesh, "red/api").is_empty());
    assert!(throttle(&["--off"]).fails(2).contains("has no limit"));
    assert!(throttle(&["--connections", "60", "--dry-run"]).ok().contains("would be limited to 60"));
    assert_eq!(placement(&mesh, "red/api")["connectionLimit"], Value::Null);
    throttle(&["--connections", "60", "--reason", "a loop"]).ok();
    let limit = placement(&mesh, "red/api")["connectionLimit"].clone();
    assert_eq!((&limit["perSecond"], &limit["automatic"]), (&json!(60), &json!(false)), "{limit}");
    let status = mesh.run(&["gateway", "status"]).ok();
    assert!(status.contains("an operator limits it to 60 new connections a second"), "{status}");
    assert!(status.contains(": a loop"), "{status}");
    throttle(&["--off"]).ok();
    assert_eq!(placement(&mesh, "red/api")["connectionLimit"], Value::Null);
    // Its tenant may delete the record, and administrators end the limit.
    throttle(&["--connections", "60"]).ok();
    mesh.run(&["delete", "gateway-service", "red/api"]).ok();
    let status = || mesh.run(&["gateway", "status"]).ok();
    wait_until("the limit outlives the record", || status().contains("its record is deleted"));
    assert!(status().contains("an operator limits it to 60 new connections a second"), "{}", status());
    throttle(&["--off"]).ok();
    wait_until("the service is placed no more", || !status().contains("red/api"));
}
