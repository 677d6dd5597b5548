//! `fairmesh check`: finds faults of a mesh, and explains how to fix them.
//!
//! It examines what one machine can reach: processes, the machine itself, and all records. Faults visible only on
//! another machine, such as a missing route there, must be examined there.

mod agent_regions;
mod local_system;
mod page_fetch;
mod processes;
mod readable_records;
mod records;
mod subsets;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use fairmesh_console::{
    arguments::{AgentTarget, OutputArgs, TargetArgs},
    failure::Failure,
    output,
};
use fairmesh_processes::daemon_args::AdminAddress;

use super::findings_report::{Level, Report};

/// Arguments of `fairmesh check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The admin port of the control plane, or 'none'.
    #[arg(long, alias = "http", value_name = "ADDRESS", default_value = "127.0.0.1:7401")]
    control_admin: AdminAddress,
    /// The admin port of the agent, or 'none'.
    #[arg(long, alias = "metrics", value_name = "ADDRESS", default_value = "127.0.0.1:7402")]
    agent_admin: AdminAddress,
    /// The admin port of a proxy, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    admin: AdminAddress,
    /// A folder with data of the mesh on this machine, beside the default ones; may be repeated.
    #[arg(long, value_name = "DIR")]
    state_dir: Vec<PathBuf>,
    #[command(flatten)]
    agent: AgentTarget,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Checks everything. Exits with code 1 if there is a warning or an error.
pub async fn run(args: CheckArgs) -> Result<ExitCode, Failure> {
    let mut report = Report::default();
    let control = processes::control(&args, &mut report).await?;
    processes::agent(&args, control.as_ref(), &mut report).await;
    processes::proxy(&args, &mut report).await;
    local_system::folders(&args, &mut report);
    local_system::abilities(&mut report).await;
    if let Some(control) = &control {
        processes::readers(control, &mut report).await;
        agent_regions::check(control, &mut report).await;
        readable_records::check(control, &mut report).await;
    }
    output::print_one(args.output_args.format(), &report.json(), &report.to_string())?;
    Ok(if report.worst() >= Level::Warning { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
