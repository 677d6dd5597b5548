//! `fairmesh register`.

use std::process::ExitCode;

use crate::failure::Failure;

/// Arguments of `fairmesh register`.
#[derive(Debug, clap::Args)]
pub(crate) struct RegisterArgs {}

/// Registers a program and keeps its lease.
pub(crate) async fn run(_args: RegisterArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed("not there"))
}
