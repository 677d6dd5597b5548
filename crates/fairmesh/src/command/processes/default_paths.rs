//! Default paths: in system directories for root, in the user's own otherwise.

use std::path::PathBuf;

use fairmesh_wire::environment;

use crate::failure::Failure;

/// The state directory of one component, `control` or `agent`, which survives restarts.
pub(crate) fn state(part: &str) -> Result<PathBuf, Failure> {
    let folder = if is_root() { Some(environment::system_state(part)) } else { environment::own_state(part) };
    folder.ok_or_else(|| {
        Failure::refused(
            "there is no home directory for the state",
            "give a directory, or set HOME or XDG_STATE_HOME",
        )
    })
}

/// The default socket of the agent of this machine, or of this user.
pub(crate) fn agent_socket() -> PathBuf {
    let own = if is_root() { None } else { environment::own_socket() };
    own.unwrap_or_else(environment::system_socket)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
