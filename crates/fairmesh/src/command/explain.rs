//! `fairmesh explain`.

use std::process::ExitCode;

use clap::Args;

use crate::{cli::Reach, failure::Failure};

/// Arguments of `fairmesh explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    reach: Reach,
}

/// Carries the command out.
pub(crate) async fn run(args: ExplainArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed(format!("{} is not reachable", args.reach.control)))
}
