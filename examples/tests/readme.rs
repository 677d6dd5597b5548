//! The Rust blocks of the documentation are compiled as they are printed, and README's first program is run. Those of
//! `docs/library.md` are documentation tests (`src/lib.rs`).

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod readme {
    pub(crate) mod blocks;
}

use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// A text without the differences that a formatter makes.
fn letters(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("//!"));
    lines.flat_map(str::chars).filter(|one| !one.is_whitespace()).collect()
}

/// What stands between each `begin` and the `end` that follows it.
fn between(text: &str, begin: &str, end: &str) -> Vec<String> {
    text.split(begin).skip(1).map(|rest| letters(rest.split_once(end).unwrap().0)).collect()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn every_rust_block_of_readme_is_compiled_as_printed() {
    let mut documents = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    documents.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    documents.retain(|path| path.extension().is_some_and(|end| end == "md") && !path.ends_with("library.md"));

    let printed: BTreeSet<_> =
        documents.iter().flat_map(|path| between(&read(path), "```rust\n", "```")).collect();
    let program = letters(&read("src/bin/readme_client.rs"));
    let blocks = between(&read("tests/readme/blocks.rs"), "// BLOCK\n", "// END\n");
    let compiled: BTreeSet<_> = blocks.into_iter().chain([program]).collect();
    let differences: Vec<_> = printed.symmetric_difference(&compiled).collect();
    assert!(differences.is_empty(), "printed or compiled only: {differences:#?}");
    drop(readme::blocks::all());
}

#[test]
fn readme_example_prints_why_call_failed_and_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let agent = format!("unix:{}", folder.path().join("agent.sock").display());
    let client = Command::new(env!("CARGO_BIN_EXE_readme_client"))
        .env_clear()
        .env("FAIRMESH_AGENT", &agent)
        .output()
        .unwrap();
    let said = String::from_utf8(client.stderr).unwrap();
    assert_eq!(client.status.code(), Some(1), "{said}");
    assert!(said.contains("agent.sock"), "{said}");
}
