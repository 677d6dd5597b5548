//! `fairmesh rib`.

mod replica;
mod status;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;

/// What to do with the routing information base as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum RibCommand {
    /// Run a replica: a copy of everything that agents and further replicas follow in the control plane's stead.
    Replica(replica::ReplicaArgs),
    /// Show how far everybody is behind the control plane, by router, by replica or by region, and who is.
    Status(status::StatusArgs),
}

pub(crate) async fn run(command: RibCommand) -> Result<ExitCode, Failure> {
    match command {
        RibCommand::Replica(args) => replica::run(args).await,
        RibCommand::Status(args) => status::run(args).await,
    }
}
