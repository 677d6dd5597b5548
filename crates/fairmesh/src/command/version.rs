//! `fairmesh version`.

use std::process::ExitCode;

use crate::{cli::SeenAs, failure::Failure};

/// Prints the version.
pub(crate) fn run(_seen_as: SeenAs) -> Result<ExitCode, Failure> {
    println!("fairmesh {}", env!("CARGO_PKG_VERSION"));
    Ok(ExitCode::SUCCESS)
}
