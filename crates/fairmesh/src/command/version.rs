//! `fairmesh version`.

use std::process::ExitCode;

use fairmesh_wire::handshake::PROTOCOL;
use serde_json::json;

use crate::{cli::SeenAs, failure::Failure, output};

/// Prints the version of the binary and the protocol versions that it speaks.
pub(crate) fn run(seen_as: SeenAs) -> Result<ExitCode, Failure> {
    let (version, oldest, newest) = (env!("CARGO_PKG_VERSION"), PROTOCOL.start(), PROTOCOL.end());
    let value = json!({ "version": version, "protocol": { "oldest": oldest, "newest": newest } });
    let text = format!("fairmesh {version}, protocol {oldest} to {newest}\n");
    output::print_one(seen_as.format(), &value, &text)?;
    Ok(ExitCode::SUCCESS)
}
