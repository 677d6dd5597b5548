//! Addresses of the registry.

use fairmesh_model::Invalid;
use fairmesh_wire::{
    environment::{self, Upstream},
    transport::Address,
};

/// Returns the addresses to try, in order: those given, otherwise [those that the environment
/// names](environment::upstream).
///
/// # Errors
/// A variable does not hold an address.
pub fn registry_addresses(given: &[Address]) -> Result<Vec<Address>, Invalid> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let (Upstream::Agents(addresses) | Upstream::ControlPlanes(addresses)) = environment::upstream()?;
    Ok(addresses)
}
