//! `fairmesh man`: writes manual pages generated from the command-line definitions.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Args;
use fairmesh_console::failure::Failure;

use crate::cli;

/// Arguments of `fairmesh man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder, which is made if it does not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes a page for each command.
pub(crate) fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        let problem = format!("cannot write manual pages to {}: {error}", args.folder.display());
        Failure::failed_with(problem, "name a folder in which this user may write")
    };
    fs::create_dir_all(&args.folder).map_err(failed)?;
    clap_mangen::generate_to(cli::command(), &args.folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
