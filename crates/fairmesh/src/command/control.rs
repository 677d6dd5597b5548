//! `fairmesh control`.

use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;

/// Arguments of `fairmesh control`.
#[derive(Debug, Args)]
pub(crate) struct ControlArgs {}

/// Runs until SIGTERM or SIGINT.
pub(crate) async fn run(_args: ControlArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed("not there"))
}
