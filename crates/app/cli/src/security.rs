//! `fairmesh security`: what is protected, and what is not.

mod agent_certificate;
mod mesh_records;
mod new_root_trust;
mod plaintext_listeners;
mod secret_files;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_model::TrustBundle;

use super::findings_report::{Level, Report};

/// Subcommands of `fairmesh security`.
#[derive(Debug, Subcommand)]
pub enum SecurityCommand {
    /// Find what is not protected: in the records of the mesh, and in the files with keys, records and locks, the agent's
    /// certificate and the listeners of this machine; exits 1 if there is a warning or an error.
    Check(SecurityCheckArgs),
}

/// Arguments of `fairmesh security check`.
#[derive(Debug, Args)]
pub struct SecurityCheckArgs {
    /// A folder with data of the mesh on this machine, beside the default ones; may be repeated.
    #[arg(long, value_name = "DIR")]
    state_dir: Vec<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Checks the records of the mesh. Returns the roots of the trust domain, if there is one.
async fn mesh(target: &TargetArgs, report: &mut Report) -> Result<Option<TrustBundle>, Failure> {
    let connection = connect::connect(target).await?;
    mesh_records::check(&connection, report).await
}

/// Runs the subcommand.
pub async fn run(command: SecurityCommand) -> Result<ExitCode, Failure> {
    let SecurityCommand::Check(args) = command;
    let mut report = Report::default();
    let bundle = match mesh(&args.target, &mut report).await {
        Ok(bundle) => bundle,
        // Files and listeners of this machine are examined nevertheless. What was not read may leave anything open.
        Err(failure) => {
            let level = if failure.is_refusal() { Level::Warning } else { Level::Error };
            report.add(
                "mesh",
                level,
                format!("not all records of the mesh were examined: {}", failure.message()),
                "they need the role viewer for all tenants ('fairmesh get roles'), or the user of the control plane on its machine: \
                 --control unix:DIR/control.sock, with its --data-dir DIR",
            );
            None
        }
    };
    secret_files::check(&args.state_dir, &mut report);
    agent_certificate::check(&args.state_dir, bundle.as_ref(), &mut report);
    plaintext_listeners::check(&mut report).await?;
    output::print_one(args.output_args.format(), &report.json(), &report.to_string())?;
    Ok(if report.worst() >= Level::Warning { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
