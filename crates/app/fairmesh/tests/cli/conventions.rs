//! Rules for the output of every command: the same options, one naming style, and machine-readable errors.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use serde_json::Value;

use super::support::{Mesh, fairmesh};

/// Commands that read, and print JSON with `--json`.
const READING: &[&[&str]] = &[
    &["get", "services"],
    &["get", "endpoints"],
    &["get", "policies"],
    &["get", "health"],
    &["get", "shards"],
    &["get", "shards", "shop/cart"],
    &["get", "regions"],
    &["get", "hosts"],
    &["get", "moves"],
    &["get", "tables"],
    &["get", "watchers"],
    &["get", "workloads"],
    &["get", "authorization"],
    &["describe", "shop/cart"],
    &["describe", "service", "shop/catalog"],
    &["describe", "shop/catalog/catalog-0"],
    &["describe", "region", "eu"],
    &["describe", "host", "milan-64"],
    &["explain", "shop/catalog", "--region", "eu"],
    &["history", "service", "shop/catalog"],
    &["rib", "status"],
    &["imbalance"],
    &["top"],
    &["traffic", "status"],
    &["traffic", "calls"],
    &["shards", "get", "shop/cart"],
    &["shards", "moves", "shop/cart"],
    &["version"],
];

/// Fields whose subfields are named by users, such as labels.
const NAMED_BY_USERS: &[&str] = &["labels", "toPercent", "endpoints", "options", "headers"];

fn shop_with_a_server() -> Mesh {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "eu", 9000);
    mesh
}

/// Collects the fields that are not in camel case.
fn misnamed(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| misnamed(item, found)),
        Value::Object(fields) => {
            for (name, below) in fields {
                let plain = name.chars().all(|c| c.is_ascii_alphanumeric());
                if !plain || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
                    found.push(name.clone());
                }
                if !NAMED_BY_USERS.contains(&name.as_str()) || !below.is_object() {
                    misnamed(below, found);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn json_of_every_command_uses_camel_case() {
    let mesh = shop_with_a_server();
    for command in READING {
        let run = mesh.run(&[command, &["--json"][..]].concat());
        for line in run.err.lines() {
            let message: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{command:?}: {error}: {line}"));
            assert!(message.is_object(), "{command:?}: {line}");
        }
        let mut found = Vec::new();
        misnamed(&run.json(), &mut found);
        assert!(found.is_empty(), "{command:?}: {found:?}");
        let same = mesh.run(&[command, &["-o", "yaml"][..]].concat());
        assert_eq!(same.code, Some(0), "{command:?}: {same:?}");
    }
}

#[test]
fn errors_are_json_objects_with_json_output() {
    let mesh = Mesh::with_shop();
    let error = |args: &[&str], code| {
        let err = mesh.run(args).fails(code);
        let value: Value = serde_json::from_str(err.trim()).unwrap_or_else(|error| panic!("{error}: {err}"));
        assert_eq!(value["error"]["exitCode"], code, "{err}");
        value["error"]["message"].as_str().unwrap().to_owned()
    };
    assert!(error(&["describe", "shop/nothing", "--json"], 1).contains("there is no service shop/nothing"));
    // Errors of the argument parser, of one of our types, and of YAML.
    assert!(error(&["get", "sevices", "--json"], 2).contains("invalid value 'sevices'"));
    assert!(error(&["describe", "service", "shop", "-o", "json"], 2).contains("shop"));
    let wrong = mesh.file("wrong.yaml", "kind: Service\nname: shop/x\ntpye: sharded\n");
    error(&["apply", "-f", &wrong, "--json"], 2);
    let unreachable =
        fairmesh("unix:/nowhere/control.sock", &["get", "services", "--output=json"], "").fails(1);
    assert!(unreachable.starts_with(r#"{"error":"#), "{unreachable}");
    // Without `--json`, errors are text for people.
    assert!(!mesh.run(&["describe", "shop/nothing"]).fails(1).starts_with('{'));
}

#[test]
fn get_prints_names_only_or_extra_columns_by_output_option() {
    let mesh = shop_with_a_server();
    assert_eq!(mesh.run(&["get", "services", "-o", "name"]).ok(), "shop/cart\nshop/catalog\n");
    assert_eq!(mesh.run(&["get", "endpoints", "-o", "name"]).ok(), "shop/catalog/catalog-0\n");
    assert_eq!(mesh.run(&["get", "regions", "-o", "name"]).ok(), "eu\nus\n");
    let wide = mesh.run(&["get", "endpoints", "-o", "wide"]).ok();
    assert!(wide.contains("LABELS") && wide.contains("catalog-0"), "{wide}");
    // `describe` accepts the printed name.
    assert!(mesh.run(&["describe", "shop/catalog"]).ok().starts_with("Service   shop/catalog"));
    let endpoint = mesh.run(&["describe", "shop/catalog/catalog-0"]).ok();
    assert!(endpoint.starts_with("Service ") && endpoint.contains("127.0.0.1:9000"), "{endpoint}");
    assert!(mesh.run(&["describe", "shop/cart"]).ok().contains("\nRole      any, "), "of a sharded service");
    assert!(mesh.run(&["describe", "region", "eu"]).ok().starts_with("Region      eu\n"));
    assert!(mesh.run(&["describe", "region"]).fails(2).contains("the name of the object is missing"));
}

#[test]
fn watch_option_prints_changes() {
    let mut mesh = Mesh::with_shop();
    let mut child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["get", "services", "--watch", "--json"])
        .env_clear()
        .env("FAIRMESH_CONTROL", mesh.address())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> (String, String) {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&line["event"]), text(&line["object"]["name"]))
    };
    let event = |event: &str, name: &str| (event.to_owned(), name.to_owned());
    assert_eq!([next(), next()], [event("added", "shop/cart"), event("added", "shop/catalog")]);
    mesh.apply("kind: Service\nname: shop/hello\n").ok();
    assert_eq!(next(), event("added", "shop/hello"));
    mesh.register("shop/hello", "hello-0", "eu", 9001);
    assert_eq!(next(), event("changed", "shop/hello"));
    // The watch acknowledges updates, so that no drain waits for it.
    mesh.run(&["drain", "shop/hello", "hello-0", "--deadline", "20s"]).ok();
    assert_eq!(next(), event("changed", "shop/hello"));
    // The watch survives a restart of the control plane, and prints the changes made meanwhile.
    mesh.stop_control("TERM");
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/later\n").ok();
    assert_eq!(next(), event("added", "shop/later"));
    mesh.run(&["delete", "service", "shop/hello", "--force"]).ok();
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn commands_try_given_control_planes_in_order() {
    let mesh = Mesh::start();
    let [absent, present] = [format!("unix:{}", mesh.path("none.sock").display()), mesh.address()];
    let by_variable = fairmesh(&format!("{absent},{present}"), &["get", "services", "--json"], "");
    assert_eq!(by_variable.out, "[]\n", "{by_variable:?}");
    assert!(by_variable.err.contains("none.sock") && by_variable.err.contains("trying"), "{by_variable:?}");
    let repeated = ["get", "services", "--json", "--control", &present, "--control", &absent];
    let by_option = fairmesh(&absent, &repeated, "");
    assert_eq!((by_option.out.as_str(), by_option.err.as_str()), ("[]\n", ""), "the first one responds");
    let none = fairmesh(&format!("{absent},{absent}"), &["get", "services"], "").fails(1);
    assert!(none.contains("cannot reach the control plane"), "{none}");
}
