//! Tests of accepted and refused certificates over real connections, and of their renewal.

// Clippy treats test helpers like production code.
#![allow(clippy::unwrap_used)]

mod authority;
mod bundle_file;
mod federation;
mod jwt;
mod mesh_connections;
mod refused;
mod renewal;
mod retirement;
mod revoked;
mod rotation;
mod signed;
mod support;
mod tokens;
mod web_roots;

/// The build leaves entropy to the kernel (`.cargo/config.toml`): jitter takes more CPU than the rest of a command.
#[test]
fn build_gathers_no_entropy_from_cpu_jitter() {
    // Joined at run time, so that the name is not in this program because of the test.
    let symbol = ["jent", "read", "entropy"].join("_");
    let found = std::process::Command::new("grep")
        .args(["--quiet", "--text", "--fixed-strings", &symbol])
        .arg(std::env::current_exe().unwrap())
        .status();
    assert_eq!(found.unwrap().code(), Some(1), "{symbol} is in the program");
}
