//! `fairmesh rib`.

mod export_import;
mod replica;
mod split;
mod status;

use std::process::ExitCode;

use clap::Subcommand;
use fairmesh_console::failure::Failure;

pub use status::followers;

/// Commands on the whole routing information base.
#[derive(Debug, Subcommand)]
pub enum RibCommand {
    /// Run a replica: a copy of all records that agents and further replicas follow instead of the control plane.
    Replica(replica::ReplicaArgs),
    /// Show the lag of watchers behind the control plane, by router, by replica or by region.
    Status(status::StatusArgs),
    /// Move services of a partitioned store in etcd to another cluster, while it is read and written.
    Split(split::SplitArgs),
    /// Write all records, at one revision and with a checksum, to a new file.
    Export(export_import::Export),
    /// Write the records of a file into an empty store.
    Import(export_import::import::Import),
    /// Check that every record is readable and equal to that of a file; exits 3 when not.
    Verify(export_import::Verify),
}

/// Runs one of the commands.
pub async fn run(command: RibCommand) -> Result<ExitCode, Failure> {
    match command {
        RibCommand::Replica(args) => replica::run(args).await,
        RibCommand::Status(args) => status::run(args).await,
        RibCommand::Split(args) => split::run(args).await,
        RibCommand::Export(args) => export_import::export(args).await,
        RibCommand::Import(args) => export_import::import::run(args).await,
        RibCommand::Verify(args) => export_import::verify(args).await,
    }
}
