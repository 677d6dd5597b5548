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
    /// Folder of the package, followed by the target's name unless it is the library: `client`, `client::mesh`.
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Folder in which `cargo test` runs the binary.
    pub(crate) package: PathBuf,
}

impl Binary {
    /// Command for the binary, in the folder and with the variables that `cargo test` uses.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package).stdin(Stdio::null());
        command
    }
}

/// The cargo that runs this program, or the one in the path.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds the tests of the whole workspace, or selected targets.
///
/// Always uses `--workspace`: building a single package would compile its dependencies again with other features.
///
/// # Errors
/// When something does not compile; cargo has printed the reason on standard error, which it shares with this process.
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

/// Parses the test binary from a cargo message, if the message is about one.
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
    fn test_binary_is_named_by_package_and_target() {
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
