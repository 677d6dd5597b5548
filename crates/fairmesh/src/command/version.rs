//! `fairmesh version`.

use std::process::ExitCode;

use fairmesh_wire::handshake::PROTOCOL;
use serde_json::json;

use crate::{cli::OutputArgs, failure::Failure, output};

/// Prints the version of the binary and its protocol versions.
pub(crate) fn run(output_args: OutputArgs) -> Result<ExitCode, Failure> {
    let (version, oldest, newest) = (env!("CARGO_PKG_VERSION"), PROTOCOL.start(), PROTOCOL.end());
    let value = json!({ "version": version, "protocol": { "oldest": oldest, "newest": newest } });
    let text = format!("fairmesh {version}, protocol {oldest} to {newest}\n");
    output::print_one(output_args.format(), &value, &text)?;
    Ok(ExitCode::SUCCESS)
}
