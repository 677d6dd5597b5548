//! The only Fairmesh binary: control plane, agent, the other processes, demo, and the command line.
//!
//! This crate holds the tree of commands and no logic; the commands are in the crates `processes`, `demo` and `cli`.
//! Separate binaries for the control plane and the agent were rejected: there is one file to copy and one version to
//! compare.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod command;
mod man;

use std::{io, process::ExitCode};

use cli::Command;
use fairmesh_calls::forwarding::set_event_loop;
use fairmesh_cli::dev;
use fairmesh_console::{
    failure::{self, Failure},
    output,
};
use fairmesh_processes::heap_trimming;
use fairmesh_wire::environment;
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    cli::completion::complete_if_asked();
    failure::configure_reports();
    fairmesh_listen::raise_descriptor_limit();
    let cli = match cli::Cli::read() {
        Ok(cli) => cli,
        Err(failure) => return failure.report(),
    };
    // Checked here so that no command runs with an identity other than the configured one.
    if let Err(invalid) = environment::workload_api() {
        return Failure::refused(format!("{}: {}", invalid.field, invalid.problem), invalid.hint).report();
    }
    let runtime = match runtime(&cli.command) {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(format_args!(
                "fairmesh: cannot start: {error}; raise the limits on processes (ulimit -u) and open files (ulimit -n)"
            ));
            return ExitCode::FAILURE;
        }
    };
    if cli.command.serves_many_peers() {
        runtime.spawn(heap_trimming::trim_periodically());
    }
    let code = match runtime.block_on(command::run(cli)) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    };
    // Dropping the runtime waits for its blocking tasks.
    drop(runtime);
    dev::delete_temporary_data();
    code
}

/// A single-threaded runtime for commands that need no more, otherwise a runtime with one thread per processor.
fn runtime(command: &Command) -> io::Result<Runtime> {
    let mut builder = if command.runs_on_one_thread() {
        set_event_loop(0);
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    builder.enable_all().build()
}
