//! `fairmesh rib`.

mod transfer;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;

/// What to do with the routing information base as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum RibCommand {
    /// Write all records, at one revision and with a checksum, to a new file.
    Export(transfer::Export),
    /// Write the records of a file into an empty store.
    Import(transfer::import::Import),
    /// Check that every record can be read, and that they are those of a file; exits 3 when not.
    Verify(transfer::Verify),
}

pub(crate) async fn run(command: RibCommand) -> Result<ExitCode, Failure> {
    match command {
        RibCommand::Export(args) => transfer::export(args).await,
        RibCommand::Import(args) => transfer::import::run(args).await,
        RibCommand::Verify(args) => transfer::verify(args).await,
    }
}
