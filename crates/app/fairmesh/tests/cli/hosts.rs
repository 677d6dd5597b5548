//! Machine speeds: declared, listed, and used by callers.

use fairmesh_wire::v1::{Endpoint, Location};
use serde_json::json;

use super::support::Mesh;

const HOSTS: &str = "\
kind: Hosts
types:
  - {name: new, speed: 1400}
  - {name: old, speed: 700}
prefixes:
  - {prefix: 127.0.0.0/8, hostType: old}
";

fn catalog(instance: &str, zone: &str, host_type: &str) -> Endpoint {
    let (zone, host_type) = (zone.into(), host_type.into());
    Endpoint {
        mtls: false,
        instance: instance.into(),
        address: "127.0.0.1:7000".into(),
        location: Some(Location { region: "eu".into(), zone, host_type, ..Location::default() }),
        state: fairmesh_wire::v1::endpoint::State::Serving.into(),
        ..Endpoint::default()
    }
}

#[test]
fn host_speed_scales_capacity_shares_and_power() {
    let mesh = Mesh::with_shop();
    mesh.apply(HOSTS).ok();
    mesh.announce("shop/catalog", catalog("a", "eu-1", "new"));
    mesh.announce("shop/catalog", catalog("b", "eu-2", ""));

    let hosts = mesh.run(&["get", "hosts", "--json"]).json();
    assert_eq!(
        (&hosts[0]["name"], &hosts[0]["speed"], &hosts[0]["endpoints"]),
        (&json!("new"), &json!(1400), &json!(1))
    );
    assert_eq!(hosts[1]["prefixes"], json!(["127.0.0.0/8"]));
    let one = mesh.run(&["describe", "endpoint", "shop/catalog/b", "--json"]).json();
    assert_eq!((&one["hostType"], &one["power"]), (&json!("old"), &json!(700)), "by its address");
    let described = mesh.run(&["describe", "host", "old", "--json"]).json();
    assert_eq!(described["endpoints"], json!({"shop/catalog": 1}));

    let capacity = mesh.run(&["describe", "service", "shop/catalog", "--json"]).json()["capacity"].clone();
    let share = |row: usize| (capacity[row]["zone"].clone(), capacity[row]["shareThousandths"].clone());
    assert_eq!(
        [share(0), share(1), share(2)],
        [(json!(null), json!(1000)), (json!("eu-1"), json!(667)), (json!("eu-2"), json!(333))]
    );

    let told = mesh.run(&["explain", "shop/catalog", "--region", "eu"]).ok();
    assert!(told.contains("eu is here (0 ms): ring 0, 100.0 % of the capacity"), "{told}");
    assert!(told.contains("power 1400 (weight 1000, host speed 1400)"), "{told}");
}

#[test]
fn calibrate_prints_record_that_apply_accepts() {
    let mesh = Mesh::start();
    mesh.apply(HOSTS).ok();
    let measured = mesh.run(&["calibrate", "--host-type", "this", "-o", "yaml"]);
    assert!(measured.err.contains("built without optimisation") || !cfg!(debug_assertions), "{measured:?}");
    let file = mesh.file("hosts.yaml", &measured.ok());
    mesh.run(&["apply", "-f", &file]).ok();
    let hosts = mesh.run(&["get", "hosts", "--json"]).json();
    let names: Vec<_> = hosts.as_array().unwrap().iter().map(|host| host["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["new", "old", "this"]);
}

#[test]
fn invalid_hosts_are_refused_with_position() {
    let mesh = Mesh::start();
    let refused = mesh.apply(&HOSTS.replace("speed: 1400", "speed: 14")).fails(2);
    assert!(refused.contains("write 100 to 10000"), "{refused}");
    let refused = mesh.apply(&HOSTS.replace("127.0.0.0/8", "127.0.0.1/8")).fails(2);
    assert!(refused.contains("write 127.0.0.0/8"), "{refused}");
    mesh.apply(HOSTS).ok();
    let file = mesh.file("hosts.yaml", &HOSTS.replace("speed: 700", "speed: 800"));
    let different = mesh.run(&["diff", "-f", &file]);
    assert!(different.out.contains("-  speed: 700\n+  speed: 800\n"), "{different:?}");
}
