//! Default paths: in system directories for root, in the user's own otherwise.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use fairmesh_wire::environment;

use crate::failure::Failure;

/// The state directory of one component, `control` or `agent`, which survives restarts.
pub fn state(part: &str) -> Result<PathBuf, Failure> {
    let folder = if is_root() { Some(environment::system_state(part)) } else { environment::own_state(part) };
    folder.ok_or_else(|| {
        Failure::refused(
            "there is no home directory for the state",
            "give a directory, or set HOME or XDG_STATE_HOME",
        )
    })
}

/// Folders in which processes of this machine may keep their state: the default folders and the given ones.
pub fn state_folders(given: &[PathBuf]) -> Vec<PathBuf> {
    let parts = ["control", "agent", "replica"];
    let usual =
        parts.iter().flat_map(|part| [Some(environment::system_state(part)), environment::own_state(part)]);
    let mut folders: Vec<PathBuf> = usual.flatten().chain(given.iter().cloned()).collect();
    folders.dedup();
    folders
}

/// Default socket of the agent of this machine, or of this user.
pub fn agent_socket() -> Result<PathBuf, Failure> {
    let socket = if is_root() { Some(environment::system_socket()) } else { environment::own_socket() };
    let socket = socket.ok_or_else(|| {
        Failure::refused(
            "there is no place for the agent's socket: this user is not root and has no home directory",
            "give one with --listen (of 'dev', --agent), or set XDG_RUNTIME_DIR, HOME or XDG_STATE_HOME",
        )
    })?;
    if let Some(folder) = socket.parent().filter(|_| !is_root()) {
        make_private(folder)?;
    }
    Ok(socket)
}

/// Creates the folder of this user's socket, accessible only to this user: if everyone could enter the folder, any
/// user could connect to the socket. An existing folder keeps its permissions.
fn make_private(folder: &Path) -> Result<(), Failure> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        Failure::refused(
            format!("cannot make {} for the agent's socket: {error}", folder.display()),
            "give another address with --listen (of 'dev', --agent)",
        )
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
