//! What a person may type: the tree of commands and their arguments. What they do is in [`crate::command`].

mod reach;

use std::{error::Error as _, path::PathBuf};

use clap::{
    Parser, Subcommand,
    error::{ContextKind, ContextValue},
};
use fairmesh_model::Invalid;

pub(crate) use reach::{Agent, Format, Reach, SeenAs};

use crate::{command, demo, failure::Failure, register};

/// A service mesh: programs call services by name, and every call goes straight to the right server.
#[derive(Debug, Parser)]
#[command(name = "fairmesh", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads what was typed. Help, the version, and what clap itself refuses are printed by clap, which ends the process.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::try_parse().map_err(|error| refused(&error).unwrap_or_else(|| error.exit()))
    }
}

/// A value that a type of ours refuses, said as everywhere else: clap would run problem and hint together.
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

/// One command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the control plane: the routing information base, the registry and the admin API.
    Control(command::control::ControlArgs),
    /// Run this machine's agent: the copy of the routing information that local programs read.
    Agent(command::agent::AgentArgs),
    /// Run a proxy for programs that cannot link the library: they call services by host name.
    Proxy(Box<command::proxy::ProxyArgs>),
    /// Tell programs on machines without an agent which endpoints to call, over gRPC.
    Lookaside(command::lookaside::LookasideArgs),
    /// Run replicas of the routing information base, move it from one store to another, and look at it as a whole.
    #[command(subcommand)]
    Rib(command::rib::RibCommand),
    /// Run a small shop on this machine, break it in five ways under load, and print what callers saw.
    Demo(demo::DemoArgs),
    /// Run a program that knows nothing of Fairmesh, or stand beside one, and keep it registered.
    Register(register::RegisterArgs),

    /// Write services, policies, topology, hosts and shard maps from YAML.
    Apply(command::apply::ApplyArgs),
    /// Show what YAML would change; exits 3 when it would change something.
    Diff(command::diff::DiffArgs),
    /// List records.
    Get(command::get::GetArgs),
    /// Tell everything about one record.
    Describe(command::describe::DescribeArgs),
    /// List how a service's declaration or policy changed.
    History(command::history::HistoryArgs),
    /// Put an earlier value of a service's declaration or policy back.
    Rollback(command::rollback::RollbackArgs),
    /// Delete a service's declaration or policy; its history stays.
    Delete(command::delete::DeleteArgs),
    /// Take instances out of service, and wait until every caller has moved.
    Drain(command::drain::DrainArgs),
    /// Put instances that were drained, and still run, back into service.
    Undrain(command::drain::UndrainArgs),
    /// Look at and change shard maps.
    #[command(subcommand)]
    Shards(command::shards::ShardsCommand),
    /// Say, step by step, why a request would go where it goes.
    Explain(command::explain::ExplainArgs),
    /// Say how many cores are wasted since load is uneven, where, and why.
    Imbalance(command::imbalance::ImbalanceArgs),
    /// Call a service by name, as a program with the library would.
    Call(command::call::CallArgs),
    /// Measure how fast this machine is beside others, and propose its host type.
    Calibrate(command::calibrate::CalibrateArgs),

    /// Simulate fleets with the routing code of production.
    #[command(subcommand)]
    Sim(command::sim::SimCommand),

    /// Print the completion script of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version of this binary and the protocol versions that it speaks.
    Version(SeenAs),
}

impl Command {
    /// Whether it is served best by a process of a single thread.
    pub(crate) fn runs_on_one_thread(&self) -> bool {
        matches!(self, Self::Proxy(args) if args.runs_on_one_thread())
    }
}

/// Where YAML comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct Files {
    /// A file, a folder (every .yaml and .yml in it, by name), or - for standard input; may be repeated.
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
