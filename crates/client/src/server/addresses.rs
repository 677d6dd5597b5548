//! Where the registry is reached.

use std::{env, path::PathBuf};

use fairmesh_model::Invalid;
use fairmesh_wire::transport::Address;

/// The addresses to try, in order: those given, else `FAIRMESH_AGENT`, else `FAIRMESH_CONTROL` (several separated by
/// commas), else the agent's usual socket.
pub fn registry_addresses(given: &[Address]) -> Result<Vec<Address>, Invalid> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    for name in ["FAIRMESH_AGENT", "FAIRMESH_CONTROL"] {
        let Some(text) = env::var(name).ok().filter(|text| !text.trim().is_empty()) else {
            continue;
        };
        return text
            .split(',')
            .map(|part| part.trim().parse().map_err(|e: Invalid| e.within(name)))
            .collect();
    }
    Ok(vec![Address::Unix(agent_socket())])
}

/// The socket of an agent that runs as a system service, or else as the user's.
fn agent_socket() -> PathBuf {
    let system = PathBuf::from("/run/fairmesh/agent.sock");
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !system.exists() => PathBuf::from(folder).join("fairmesh/agent.sock"),
        _ => system,
    }
}
