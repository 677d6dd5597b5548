//! The program in `outside`, which is no member of this workspace and has versions of its own, as a user's: its tests pass.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{env, path::PathBuf, process::Command};

use fairmesh_test_support::alone;

#[tokio::test]
async fn program_outside_workspace_is_built_and_passes_its_tests() {
    // It compiles.
    let _alone = alone().await;
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("../target"), PathBuf::from);
    let output = Command::new(env!("CARGO"))
        .args(["test", "--quiet"])
        .current_dir(folder.join("outside"))
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}
