//! `fairmesh rib`.

mod replica;
mod split;
mod status;
mod transfer;

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
    /// Move services of a store in etcd to another cluster, while it is read and written.
    Split(split::SplitArgs),
    /// Write all records, at one revision and with a checksum, to a new file.
    Export(transfer::Export),
    /// Write the records of a file into an empty store.
    Import(transfer::import::Import),
    /// Check that every record can be read, and that they are those of a file; exits 3 when not.
    Verify(transfer::Verify),
}

pub(crate) async fn run(command: RibCommand) -> Result<ExitCode, Failure> {
    match command {
        RibCommand::Replica(args) => replica::run(args).await,
        RibCommand::Status(args) => status::run(args).await,
        RibCommand::Split(args) => split::run(args).await,
        RibCommand::Export(args) => transfer::export(args).await,
        RibCommand::Import(args) => transfer::import::run(args).await,
        RibCommand::Verify(args) => transfer::verify(args).await,
    }
}
