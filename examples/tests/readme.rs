//! The program that README begins with.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path, process::Command};

/// A text without the differences that a formatter makes.
fn words(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with("//!")).flat_map(str::split_whitespace).collect()
}

#[test]
fn the_first_program_is_the_one_that_is_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("../README.md")).unwrap();
    let blocks = readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let printed: Vec<_> = blocks.filter(|block| block.contains("fn main")).collect();
    let compiled = fs::read_to_string(root.join("src/bin/readme_client.rs")).unwrap();
    assert_eq!(printed.len(), 1);
    assert_eq!(words(printed[0]), words(&compiled));
}

#[test]
fn it_says_why_a_call_failed_and_exits_with_1() {
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
