//! Where things lie when nobody says so: in system folders for root, in the user's own otherwise.

use std::{env, path::PathBuf};

use crate::failure::Failure;

/// The folder that keeps the state of one part, `control` or `agent`, across restarts.
pub(crate) fn state(part: &str) -> Result<PathBuf, Failure> {
    if is_root() {
        return Ok(PathBuf::from("/var/lib/fairmesh").join(part));
    }
    let base = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    let base = base.ok_or_else(|| {
        Failure::refused(
            "there is no home folder to keep state in",
            "name a folder, or set HOME or XDG_STATE_HOME",
        )
    })?;
    Ok(base.join("fairmesh").join(part))
}

/// The socket on which the agent of this machine, or of this user, listens.
pub(crate) fn agent_socket() -> PathBuf {
    let runtime = match is_root() {
        true => None,
        false => folder("XDG_RUNTIME_DIR"),
    };
    runtime.unwrap_or_else(|| "/run".into()).join("fairmesh/agent.sock")
}

fn folder(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
