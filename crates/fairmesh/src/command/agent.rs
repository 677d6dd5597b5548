//! `fairmesh agent`.

use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;

/// Arguments of `fairmesh agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {}

/// Runs until SIGTERM or SIGINT.
pub(crate) async fn run(_args: AgentArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed("not there"))
}
