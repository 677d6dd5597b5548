//! `fairmesh history` and `fairmesh rollback`.

use std::process::ExitCode;

use clap::Args;

use crate::{cli::Reach, failure::Failure};

/// Arguments of `fairmesh history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    reach: Reach,
}

/// Arguments of `fairmesh rollback`.
#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    reach: Reach,
}

/// Lists earlier values.
pub(crate) async fn run(args: HistoryArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed(format!("{} is not reachable", args.reach.control)))
}

/// Puts an earlier value back.
pub(crate) async fn roll_back(args: RollbackArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed(format!("{} is not reachable", args.reach.control)))
}
