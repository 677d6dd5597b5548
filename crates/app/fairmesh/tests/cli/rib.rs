//! Export of the whole routing information base to a file, and moves between stores.

use std::fs;

use fairmesh_test_support::Etcd;

use super::support::{Mesh, contents};

/// Answers of a control plane about its records, without revisions, which each store numbers itself.
fn answers(mesh: &Mesh) -> Vec<serde_json::Value> {
    let ask = |args: &[&str]| {
        let mut answer = mesh.run(&[args, &["--json"]].concat()).json();
        for item in answer.as_array_mut().into_iter().flatten() {
            item.as_object_mut().unwrap().remove("revision");
        }
        answer
    };
    vec![
        ask(&["get", "services"]),
        ask(&["get", "policies"]),
        ask(&["get", "endpoints"]),
        ask(&["get", "regions"]),
        ask(&["shards", "get", "shop/cart"]),
    ]
}

fn filled() -> Mesh {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "eu", 7001);
    mesh
}

#[test]
fn store_export_moves_from_file_to_etcd_and_back() {
    let from = filled();
    let file = from.path("all.rib").display().to_string();
    let exported = from.run(&["rib", "export", &file, "--json"]).json();
    let records = exported["records"].as_u64().unwrap();
    assert!(records > 5, "{exported}");

    // With etcd's default limits.
    let etcd = Etcd::start();
    let mut to = Mesh::empty();
    to.arguments = vec!["--store".into(), format!("etcd://{}", etcd.client())];
    to.start_control();
    let planned = to.run(&["rib", "import", &file, "--dry-run", "--json"]).json();
    assert_eq!((planned["records"].as_u64(), planned["dryRun"].as_bool()), (Some(records), Some(true)));
    assert_eq!(to.run(&["rib", "verify", &file, "--json"]).code, Some(3), "a dry run writes nothing");
    let imported = to.run(&["rib", "import", &file, "--json"]).json();
    assert_eq!(imported["records"].as_u64(), Some(records));
    assert!(to.run(&["rib", "verify", &file]).ok().contains("all equal to the file"));
    assert_eq!(answers(&to), answers(&from));
    to.stop_control("TERM");
    to.start_control();
    assert!(to.run(&["rib", "verify", &file]).ok().contains("all equal to the file"));

    let back = to.path("back.rib").display().to_string();
    to.run(&["rib", "export", &back]).ok();
    let again = Mesh::start();
    again.run(&["rib", "import", &back]).ok();
    assert!(again.run(&["rib", "verify", &file]).ok().contains("all equal to the file"));
}

#[test]
fn imported_records_keep_their_history() {
    let from = Mesh::start();
    for name in ["s1", "s2", "s3"] {
        from.apply(&format!("kind: Service\nname: shop/{name}\n")).ok();
    }
    let timeout = |mesh: &Mesh, timeout: &str| {
        mesh.apply(&format!("kind: Policy\nservice: shop/s2\ntimeout: {timeout}\n")).ok();
    };
    timeout(&from, "1s");
    timeout(&from, "2s");
    let file = from.path("all.rib").display().to_string();
    from.run(&["rib", "export", &file]).ok();

    let to = Mesh::start();
    to.run(&["rib", "import", &file]).ok();
    assert!(to.run(&["delete", "service", "shop/s3", "--dry-run"]).ok().contains("would be deleted"));
    to.run(&["delete", "service", "shop/s3"]).ok();
    assert_eq!(to.run(&["get", "services", "--json"]).json().as_array().unwrap().len(), 2);

    // The timeouts, newest first; each has a revision of its own, and later ones have greater revisions.
    let timeouts = |mesh: &Mesh| -> Vec<String> {
        let history = mesh.run(&["history", "policy", "shop/s2", "--json"]).json();
        let history = history.as_array().unwrap();
        let revisions: Vec<_> = history.iter().map(|one| one["revision"].as_u64().unwrap()).collect();
        assert!(revisions.is_sorted_by(|newer, older| newer > older), "{revisions:?}");
        history.iter().map(|one| one["document"]["timeout"].as_str().unwrap_or("none").to_owned()).collect()
    };
    assert_eq!(timeouts(&to), ["2s", "1s", "none"]);
    to.run(&["rollback", "policy", "shop/s2"]).ok();
    assert_eq!(timeouts(&to), ["1s", "2s", "1s", "none"]);
    timeout(&to, "3s");
    assert_eq!(timeouts(&to), ["3s", "1s", "2s", "1s", "none"]);
    let history = to.run(&["history", "policy", "shop/s2", "--json"]).json();
    to.run(&["rollback", "policy", "shop/s2", "--to", &history[2]["revision"].to_string()]).ok();
    assert_eq!(timeouts(&to)[0], "2s");
    to.run(&["delete", "policy", "shop/s2"]).ok();
    to.run(&["rollback", "policy", "shop/s2"]).ok();
    assert_eq!(to.run(&["get", "policies", "--json"]).json()[0]["timeout"], "2s");
}

#[test]
fn rib_import_into_nonempty_store_needs_confirmation() {
    let from = filled();
    let file = from.path("all.rib").display().to_string();
    from.run(&["rib", "export", &file]).ok();
    assert!(from.run(&["rib", "import", &file]).fails(2).contains("--merge"));
    let nothing = from.run(&["rib", "import", &file, "--merge", "--json"]).json();
    assert_eq!((nothing["records"].as_u64(), nothing["batches"].as_u64()), (Some(0), Some(0)));

    let to = Mesh::start();
    to.apply("kind: Service\nname: shop/own\n").ok();
    assert!(to.run(&["rib", "import", &file]).fails(2).contains("the store has records already"));
    to.run(&["rib", "import", &file, "--merge"]).ok();
    assert_eq!(to.run(&["get", "services", "--json"]).json().as_array().unwrap().len(), 3);

    let differing = Mesh::start();
    differing.apply("kind: Service\nname: shop/catalog\nprotocol: grpc\n").ok();
    let refusal = differing.run(&["rib", "import", &file, "--merge"]).fails(2);
    assert!(refusal.contains("other values") && refusal.contains("/t/shop/services/catalog"), "{refusal}");
    assert_eq!(differing.run(&["get", "services", "--json"]).json().as_array().unwrap().len(), 1);
}

#[test]
fn rib_verify_names_differences_between_file_and_store() {
    let mesh = filled();
    let file = mesh.path("all.rib").display().to_string();
    mesh.run(&["rib", "export", &file]).ok();
    assert!(mesh.run(&["rib", "verify"]).ok().contains("all readable"));
    mesh.run(&["delete", "policy", "shop/catalog"]).ok();
    mesh.apply("kind: Service\nname: shop/new\n").ok();
    mesh.apply("kind: Topology\nregions: [{name: eu}]\n").ok();
    let run = mesh.run(&["rib", "verify", &file, "--json"]);
    assert_eq!(run.code, Some(3));
    let found: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let named = |kind: &str, key: &str| {
        found[kind].as_array().unwrap().iter().any(|found| found.as_str().unwrap().contains(key))
    };
    assert!(named("missing", "/policies/catalog") && named("further", "/services/new"), "{found}");
    assert!(named("different", "/g/topology/"), "{found}");
    let run = mesh.run(&["rib", "verify", &file]);
    assert_eq!(run.code, Some(3));
    assert!(run.out.contains("only in the store: /t/shop/services/new"), "{}", run.out);
}

#[test]
fn rib_commands_refuse_existing_damaged_and_missing_files() {
    let mesh = filled();
    let file = mesh.path("all.rib").display().to_string();
    mesh.run(&["rib", "export", &file]).ok();
    let before = contents(&mesh.path("data"));
    assert!(mesh.run(&["rib", "export", &file]).fails(1).contains("exists"));
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert!(mesh.run(&["rib", "import", &file]).fails(2).contains("checksum"));
    fs::write(&file, &bytes[..10]).unwrap();
    assert!(mesh.run(&["rib", "verify", &file]).fails(2).contains("cut short"));
    assert!(mesh.run(&["rib", "verify", "/none"]).fails(2).contains("rib export"));
    assert_eq!(contents(&mesh.path("data")), before);

    let nobody = Mesh::empty();
    let never = nobody.path("never.rib");
    nobody.run(&["rib", "export", never.to_str().unwrap()]).fails(1);
    assert!(!never.exists(), "no empty file is left behind");
}
