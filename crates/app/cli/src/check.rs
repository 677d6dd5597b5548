//! `fairmesh check`: finds what is wrong with a mesh, and says what to do about it.
//!
//! It looks from one machine: at the processes that it reaches, at the machine itself, and at all records. What another
//! machine alone can see, such as a route that is missing there, has to be looked for there.

mod machine;
mod page;
mod processes;
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

use super::finding::{Level, Report};

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

/// Examines everything; exits 1 if there is a warning or an error.
pub async fn run(args: CheckArgs) -> Result<ExitCode, Failure> {
    let mut report = Report::default();
    let control = processes::control(&args, &mut report).await?;
    processes::agent(&args, control.as_ref(), &mut report).await;
    processes::proxy(&args, &mut report).await;
    machine::folders(&args, &mut report);
    machine::abilities(&mut report).await;
    if let Some(control) = &control {
        processes::readers(control, &mut report).await;
        // What was found on this machine is reported all the same.
        if let Err(failure) = records::check(control, &mut report).await {
            report.add(
                "records",
                Level::Warning,
                format!("the records were not examined: {}", failure.message()),
                "they need a role for all tenants, such as viewer ('fairmesh get roles'); the user of the control plane has every \
                 role on its machine: --control unix:DIR/control.sock, with its --data-dir DIR",
            );
        }
    }
    output::print_one(args.output_args.format(), &report.json(), &report.to_string())?;
    Ok(if report.worst() >= Level::Warning { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
