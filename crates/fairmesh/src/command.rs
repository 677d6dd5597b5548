//! What each command does: one module a command.

pub(crate) mod agent;
pub(crate) mod apply;
pub(crate) mod calibrate;
pub(crate) mod call;
pub(crate) mod control;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod drain;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod history;
pub(crate) mod imbalance;
pub(crate) mod lookaside;
mod places;
mod process;
pub(crate) mod proxy;
mod read;
mod region;
pub(crate) mod rib;
pub(crate) mod rollback;
pub(crate) mod shards;
pub(crate) mod sim;
mod strand;
mod subject;
mod version;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::{
    cli::{Cli, Command},
    demo,
    failure::Failure,
    output, register,
};

pub(crate) use get::service_words;

/// Carries out what was typed; the code is the process's.
#[allow(clippy::cognitive_complexity, reason = "one arm a command, and nothing else")]
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Control(args) => control::run(args).await,
        Command::Agent(args) => agent::run(args).await,
        Command::Proxy(args) => proxy::run(*args).await,
        Command::Lookaside(args) => lookaside::run(args).await,
        Command::Rib(command) => rib::run(command).await,
        Command::Demo(args) => demo::run(args).await.map(|()| ExitCode::SUCCESS).map_err(Failure::failed),
        Command::Register(args) => register::run(args).await,
        Command::Apply(args) => apply::run(args).await,
        Command::Diff(args) => diff::run(args).await,
        Command::Get(args) => get::run(args).await,
        Command::Describe(args) => describe::run(args).await,
        Command::History(args) => history::run(args).await,
        Command::Rollback(args) => rollback::run(args).await,
        Command::Delete(args) => delete::run(args).await,
        Command::Drain(args) => drain::run(args).await,
        Command::Undrain(args) => drain::undo(args).await,
        Command::Shards(command) => shards::run(command).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Imbalance(args) => imbalance::run(args).await,
        Command::Sim(command) => sim::run(command),
        Command::Call(args) => call::run(args).await,
        Command::Calibrate(args) => calibrate::run(args).await,
        Command::Completions { shell } => {
            // By way of memory: clap_complete panics where the reader has seen enough.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fairmesh", &mut script);
            output::write_bytes(&script).map(|()| ExitCode::SUCCESS)
        }
        Command::Version(seen_as) => version::run(seen_as),
    }
}
