//! `fairmesh apply`.

use std::process::ExitCode;

use clap::Args;

use crate::{cli::Reach, failure::Failure};

/// Arguments of `fairmesh apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    reach: Reach,
}

/// Carries the command out.
pub(crate) async fn run(args: ApplyArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed(format!("{} is not reachable", args.reach.control)))
}
