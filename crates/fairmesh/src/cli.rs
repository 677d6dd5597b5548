//! The command line: commands and their arguments. Their implementations are in [`crate::command`].

mod target_args;

use std::{error::Error as _, path::PathBuf};

use clap::{
    Parser, Subcommand,
    error::{ContextKind, ContextValue},
};
use fairmesh_model::Invalid;

pub(crate) use target_args::{AgentTarget, Format, OutputArgs, TargetArgs};

use crate::{command, demo, failure::Failure, register};

/// A service mesh: programs call services by name, and every call goes straight to the right server.
#[derive(Debug, Parser)]
#[command(name = "fairmesh", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the arguments. Help, the version, and errors of clap itself are printed by clap, which ends the process.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::try_parse().map_err(|error| refused(&error).unwrap_or_else(|| error.exit()))
    }
}

/// An argument that one of our types rejects, reported like every other error: clap would join problem and hint.
fn refused(error: &clap::Error) -> Option<Failure> {
    let invalid = error.source()?.downcast_ref::<Invalid>()?;
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let argument = text(ContextKind::InvalidArg);
    Some(Failure::refused(format!("{argument}: {}", invalid.problem), invalid.hint.as_str()))
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, or refused by the other side; 2 wrong usage or invalid input, \
    nothing was changed; 3 'diff' or 'rib verify' found differences; 4 'drain' ended before every caller had moved.";

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the control plane: the routing information base, the registry and the admin API.
    Control(command::processes::control::ControlArgs),
    /// Run this machine's agent: the copy of the routing information that local programs read.
    Agent(command::processes::agent::AgentArgs),
    /// Run a proxy for programs that cannot link the library: they call services by host name.
    Proxy(Box<command::processes::proxy::ProxyArgs>),
    /// Have the kernel send requests of unmodified programs, by eBPF.
    #[command(subcommand)]
    Kernel(command::kernel::KernelCommand),
    /// Run a lookaside: it picks endpoints over gRPC for programs on machines without an agent.
    Lookaside(command::processes::lookaside::LookasideArgs),
    /// Run replicas of the routing information base, move it from one store to another, and show its state.
    #[command(subcommand)]
    Rib(command::processes::rib::RibCommand),
    /// Run control plane, agent and proxy in one process, to develop with.
    Dev(command::processes::dev::DevArgs),
    /// Run a small shop on this machine, inject failures under load, and report the calls.
    Demo(demo::DemoArgs),
    /// Run a program, or observe a running one, and keep it registered.
    Register(register::RegisterArgs),

    /// Write services, policies, topology, hosts and shard maps from YAML.
    Apply(command::records::apply::ApplyArgs),
    /// Show what YAML would change; exits 3 when it would change something.
    Diff(command::records::diff::DiffArgs),
    /// List records.
    Get(command::records::get::GetArgs),
    /// Find what is wrong with the mesh, as seen from this machine, and say what to do; exits 1 if something is.
    Check(command::check::CheckArgs),
    /// Wait until processes and services are ready.
    Wait(command::wait::WaitArgs),
    /// Show all details of one record.
    Describe(command::records::describe::DescribeArgs),
    /// List the changes of a service's declaration or policy.
    History(command::records::history::HistoryArgs),
    /// Restore an earlier value of a service's declaration or policy.
    Rollback(command::records::rollback::RollbackArgs),
    /// Delete a service's declaration or policy; its history stays.
    Delete(command::records::delete::DeleteArgs),
    /// Take instances out of service, and wait until every caller has moved.
    Drain(command::drain::DrainArgs),
    /// Put drained instances that still run back into service.
    Undrain(command::drain::UndrainArgs),
    /// Show and change shard maps.
    #[command(subcommand)]
    Shards(command::shards::ShardsCommand),
    /// Explain, step by step, how a request is routed.
    Explain(command::explain::ExplainArgs),
    /// Show who wrote what, and verify that the log was not changed.
    Audit(command::audit::AuditArgs),
    /// Show the trust domain, let agents join it, and rotate its keys.
    #[command(subcommand)]
    Identity(command::identity::IdentityCommand),
    /// Show what the planner of region tables knows and decides, and hold it.
    #[command(subcommand)]
    Traffic(command::traffic::TrafficCommand),
    /// Report the cores wasted by uneven load, with their causes.
    Imbalance(command::imbalance::ImbalanceArgs),
    /// Call a service by name through the library.
    Call(command::call::CallArgs),
    /// Measure the speed of this machine, and propose its host type.
    Calibrate(command::calibrate::CalibrateArgs),

    /// Simulate fleets with the routing code of production.
    #[command(subcommand)]
    Sim(command::sim::SimCommand),

    /// Print the completion script of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version of this binary and its protocol versions.
    Version(OutputArgs),
}

impl Command {
    /// Whether the command runs best in a single-threaded process.
    pub(crate) fn runs_on_one_thread(&self) -> bool {
        matches!(self, Self::Proxy(args) if args.runs_on_one_thread())
    }
}

/// YAML files as arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Files {
    /// A file, a folder (its .yaml and .yml files, by name), or - for standard input; may be repeated.
    #[arg(short = 'f', long = "file", value_name = "PATH", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_tree_of_commands_is_sound() {
        super::Cli::command().debug_assert();
    }
}
