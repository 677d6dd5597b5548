//! Manual pages and completion, generated from the command-line definitions.

use std::{fs, process::Command};

use super::support::{Mesh, fairmesh};

/// Completions that a shell offers for these words; the last word is incomplete.
fn offered(control: &str, words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .env_clear()
        .envs([("COMPLETE", "fish"), ("FAIRMESH_CONTROL", control)])
        .arg("--")
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn completion_offers_commands_options_and_services() {
    let mesh = Mesh::with_shop();
    let at = mesh.address();
    assert!(offered(&at, &["fairmesh", "rollb"]).starts_with("rollback"));
    assert!(offered(&at, &["fairmesh", "get", "serv"]).starts_with("services"));
    assert!(offered(&at, &["fairmesh", "agent", "--conf"]).contains("--config"));
    let services = offered(&at, &["fairmesh", "get", "endpoints", "shop/"]);
    assert!(services.contains("shop/cart") && services.contains("shop/catalog"), "{services}");
    let one = offered(&at, &["fairmesh", "explain", "shop/cat"]);
    assert!(one.contains("shop/catalog") && !one.contains("shop/cart"), "{one}");
    for command in ["describe", "wait"] {
        assert!(offered(&at, &["fairmesh", command, "shop/cat"]).contains("shop/catalog"), "{command}");
    }
    for command in ["delete", "history", "rollback"] {
        let names = offered(&at, &["fairmesh", command, "service", "shop/cat"]);
        assert!(names.contains("shop/catalog"), "{command}: {names}");
    }
    assert!(offered(&at, &["fairmesh", "describe", "reg"]).starts_with("region"));
    assert!(offered(&at, &["fairmesh", "wait", "con"]).starts_with("control"));
    mesh.register("shop/catalog", "catalog-7", "us", 7010);
    for command in ["drain", "undrain"] {
        assert!(offered(&at, &["fairmesh", command, "shop/cat"]).contains("shop/catalog"), "{command}");
        let instances = offered(&at, &["fairmesh", command, "shop/catalog", "catalog-"]);
        assert!(instances.contains("catalog-7"), "{command}: {instances}");
    }
    // Without a control plane, nothing is offered and nothing fails.
    assert_eq!(offered("unix:/nobody.sock", &["fairmesh", "explain", "shop/"]).trim(), "");
}

#[test]
fn every_command_has_its_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    fairmesh("unix:/nobody.sock", &["man", folder.path().to_str().unwrap()], "").ok();
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(page("fairmesh.1").contains("Exit codes"));
    assert!(page("fairmesh-rib-replica.1").contains("upstream"));
    assert!(page("fairmesh-agent.1").contains("config"));
}
