//! The JSON Schema of documents: every example in the documentation is valid by the schema and can be applied.

use std::{fs, path::Path};

use serde_json::Value;

use super::support::{Mesh, fairmesh};

/// Pages whose YAML examples are not documents for `apply`.
const OTHER_PAGES: &[&str] = &["simulator.md"];
/// Records that examples of shards and splits refer to.
const BASE: &str = "kind: Service\nname: shop/cart\ntype: KIND\n---\nkind: Service\nname: shop/cart-next\n";

fn validator() -> jsonschema::Validator {
    let schema = fairmesh("unix:/nobody.sock", &["schema"], "").json();
    jsonschema::validator_for(&schema).unwrap()
}

/// Every YAML block of the README and the docs with its place, as the documents of one file.
fn examples() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut pages = vec![root.join("README.md")];
    pages.extend(fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    pages.sort();
    let mut found = Vec::new();
    for page in pages.iter().filter(|page| page.extension().is_some_and(|kind| kind == "md")) {
        let name = page.file_name().unwrap().to_str().unwrap();
        if OTHER_PAGES.contains(&name) {
            continue;
        }
        let text = fs::read_to_string(page).unwrap();
        for (number, block) in text.split("```yaml\n").skip(1).enumerate() {
            found.push((format!("{name}, block {}", number + 1), whole(block.split("```").next().unwrap())));
        }
    }
    found
}

/// Completes a block that shows a part of a policy.
fn whole(block: &str) -> String {
    match block.lines().any(|line| line.starts_with("kind:")) {
        true => block.to_owned(),
        false => format!("kind: Policy\nservice: shop/cart\n{block}"),
    }
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn every_example_file_is_valid_and_can_be_applied() {
    let (validator, examples) = (validator(), examples());
    assert!(examples.len() >= 15, "{} examples", examples.len());
    let mut wrong = Vec::new();
    for (place, text) in examples {
        let documents = documents(&text);
        for document in &documents {
            for error in validator.iter_errors(document) {
                wrong.push(format!("{place}: {error} at {}", error.instance_path()));
            }
        }
        // The registry reads endpoints from watched files; `apply` refuses them.
        if documents.iter().any(|document| document["kind"] == "Endpoints") {
            continue;
        }
        let mesh = Mesh::start();
        let is_sharded = documents.iter().any(|document| document["kind"] == "ShardMap");
        let kind = if is_sharded { "sharded" } else { "replicated" };
        mesh.apply(&BASE.replace("KIND", kind)).ok();
        let run = fairmesh(&mesh.address(), &["apply", "--force", "-f", "-"], &text);
        if run.code != Some(0) {
            wrong.push(format!("{place}: {}", run.err));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn json_schema_refuses_documents_that_apply_refuses() {
    let validator = validator();
    for (text, valid) in [
        ("kind: Service\nname: shop/web\ntype: sharded\n", true),
        ("kind: Service\nname: shop/web\ntpye: sharded\n", false),
        ("kind: Service\nname: shop/web\ntype: shraded\n", false),
        ("kind: Service\n", false),
        ("kind: Servcie\nname: shop/web\n", false),
        ("kind: Policy\nservice: shop/web\nroutes: [{name: a, match: {path: /a}}]\n", false),
        ("kind: Policy\nservice: shop/web\nroutes: [{name: a, match: {path: {prefix: /a}}}]\n", true),
    ] {
        assert_eq!(validator.is_valid(&documents(text)[0]), valid, "{text}");
        let mesh_side = Mesh::start().apply(text);
        assert_eq!(mesh_side.code == Some(0), valid, "{text}: {mesh_side:?}");
    }
}
