//! `fairmesh shards`.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{cli::Reach, failure::Failure};

/// What to do with a shard map.
#[derive(Debug, Subcommand)]
pub(crate) enum ShardsCommand {
    /// Print a shard map.
    Get(Reach),
}

/// Carries the command out.
pub(crate) async fn run(command: ShardsCommand) -> Result<ExitCode, Failure> {
    let ShardsCommand::Get(reach) = command;
    Err(Failure::failed(format!("{} is not reachable", reach.control)))
}
