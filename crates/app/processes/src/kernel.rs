//! `fairmesh kernel`: lets the kernel send requests of unmodified programs.

mod attach;
mod container_watch;
mod status;

use std::{
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use clap::{Args, Subcommand};
use fairmesh_console::failure::Failure;
use fairmesh_kernel::{DEFAULT_PINS, KernelError, enter_cgroup};

/// Commands of the kernel form.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Attach the eBPF programs to a cgroup: connections of programs in it go to the proxy while it listens (proxy --listen
    /// kernel:IP:PORT), directly otherwise.
    Attach(attach::AttachArgs),
    /// Detach them from all cgroups, and remove everything that 'attach' made.
    Detach(attach::DetachArgs),
    /// Run a program in a cgroup.
    Run(RunArgs),
    /// Show the cgroups, the proxy, and how many requests were sent by the kernel or left to the proxy, by reason.
    Status(status::StatusArgs),
    /// Check whether this kernel has what the programs need, and change nothing.
    Probe(status::ProbeArgs),
}

/// Location at which maps and links are pinned.
#[derive(Debug, Args)]
struct PinArgs {
    /// The directory in a BPF file system in which maps and links are pinned.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_PINS)]
    bpffs: PathBuf,
}

/// Arguments of `fairmesh kernel run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The cgroup (version 2), such as /shop; it is created if it is missing.
    #[arg(long, value_name = "PATH")]
    cgroup: String,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Runs one of the commands.
pub async fn run(command: KernelCommand) -> Result<ExitCode, Failure> {
    match command {
        KernelCommand::Attach(args) => attach::attach(args).await,
        KernelCommand::Detach(args) => attach::detach(args),
        KernelCommand::Run(args) => enter(args),
        KernelCommand::Status(args) => status::status(args).await,
        KernelCommand::Probe(args) => status::probe(args),
    }
}

/// Replaces this process with the program. Returns only if that fails.
fn enter(args: RunArgs) -> Result<ExitCode, Failure> {
    enter_cgroup(&args.cgroup).map_err(failure)?;
    // clap requires one.
    let [program, arguments @ ..] = args.program.as_slice() else { return Ok(ExitCode::SUCCESS) };
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::failed_with(format!("cannot run {program}: {error}"), "give a program that is on the path"))
}

fn failure(error: KernelError) -> Failure {
    match error {
        KernelError::TooManySelected { .. } => {
            Failure::refused(error, "repeat --to and --port up to 8 times each")
        }
        error => Failure::failed(error),
    }
}
