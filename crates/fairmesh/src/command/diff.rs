//! `fairmesh diff`.

use std::process::ExitCode;

use clap::Args;

use crate::{cli::Reach, failure::Failure};

/// Arguments of `fairmesh diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    reach: Reach,
}

/// Carries the command out.
pub(crate) async fn run(args: DiffArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed(format!("{} is not reachable", args.reach.control)))
}
