use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use serde_json::Value;
use tokio::process::Command;

/// A compiled test binary.
#[derive(Debug)]
pub(crate) struct Binary {
    /// The folder of its package, then the name of its target unless that is the library: `client`, `client::mesh`.
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Where `cargo test` runs it.
    pub(crate) package: PathBuf,
}

impl Binary {
    /// The binary as a command, in the folder and with the variables that `cargo test` gives it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package).stdin(Stdio::null());
        command
    }
}

/// The cargo that runs this, or that of the path.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds the tests of the whole workspace, or of a selection of its targets.
///
/// Always by `--workspace`: to build one package would compile its dependencies with other features, once more.
///
/// # Errors
/// When something does not compile; cargo has said what on standard error, which it shares with this process.
pub(crate) async fn test_binaries(selection: &[String]) -> Result<Vec<Arc<Binary>>, String> {
    let build = cargo()
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .args(selection)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo: {error}"))?
        .wait_with_output()
        .await
        .map_err(|error| format!("cargo: {error}"))?;
    if !build.status.success() {
        return Err("the tests do not compile".into());
    }
    let messages = String::from_utf8_lossy(&build.stdout);
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(artifacts.filter_map(|artifact| read(&artifact)).map(Arc::new).collect())
}

/// The test binary that a message of cargo is about, if it is about one.
fn read(message: &Value) -> Option<Binary> {
    if message["profile"]["test"] != true {
        return None;
    }
    let path = message["executable"].as_str()?;
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let folder = package.file_name()?.to_str()?;
    let target = &message["target"];
    let id = match target["kind"][0].as_str()? {
        "lib" | "proc-macro" => folder.to_owned(),
        _ => format!("{folder}::{}", target["name"].as_str()?),
    };
    Some(Binary { id, path: path.into(), package: package.into() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(kind: &str, name: &str, executable: Option<&str>) -> Value {
        json!({
            "manifest_path": "/w/crates/library/client/Cargo.toml",
            "target": {"kind": [kind], "name": name},
            "profile": {"test": true},
            "executable": executable,
        })
    }

    #[test]
    fn test_binaries_are_named_by_package_and_target() {
        let id = |kind, name| read(&message(kind, name, Some("/w/target/x"))).unwrap().id;
        assert_eq!(id("lib", "fairmesh_client"), "client");
        assert_eq!(id("test", "mesh"), "client::mesh");
    }

    #[test]
    fn only_runnable_artifacts_count_as_tests() {
        assert!(read(&message("lib", "fairmesh_client", None)).is_none());
        let mut library = message("bin", "fairmesh", Some("/w/target/fairmesh"));
        library["profile"]["test"] = json!(false);
        assert!(read(&library).is_none());
        assert!(read(&json!({"reason": "build-finished", "success": true})).is_none());
    }
}
