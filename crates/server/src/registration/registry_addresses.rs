//! Addresses of the registry.

use std::env;

use fairmesh_model::Invalid;
use fairmesh_wire::transport::Address;

use fairmesh_wire::environment;

/// The addresses to try, in order: those given, else `FAIRMESH_AGENT`, else `FAIRMESH_CONTROL` (several separated by
/// commas), else the default socket of the agent.
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
    Ok(vec![environment::agent()])
}
