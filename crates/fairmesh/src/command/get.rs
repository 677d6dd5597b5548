//! `fairmesh get`.

use std::process::ExitCode;

use clap::Args;

use crate::{cli::Reach, failure::Failure};

/// Arguments of `fairmesh get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    reach: Reach,
}

/// Carries the command out.
pub(crate) async fn run(args: GetArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed(format!("{} is not reachable", args.reach.control)))
}
