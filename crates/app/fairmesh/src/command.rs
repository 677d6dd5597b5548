//! Implementations of the commands, one module each.

pub(crate) mod audit;
pub(crate) mod calibrate;
pub(crate) mod call;
mod caller_region;
mod callers_behind;
pub(crate) mod check;
pub(crate) mod drain;
pub(crate) mod explain;
mod finding;
pub(crate) mod identity;
pub(crate) mod imbalance;
pub(crate) mod kernel;
pub(crate) mod man;
pub(crate) mod processes;
pub(crate) mod records;
mod region_drain;
mod request_args;
mod schema;
pub(crate) mod security;
pub(crate) mod shards;
pub(crate) mod sim;
pub(crate) mod tap;
pub(crate) mod traffic;
pub(crate) mod version;
pub(crate) mod wait;

use std::process::ExitCode;

use crate::{
    cli::{self, Cli, Command},
    demo,
    failure::Failure,
    output, register,
};

pub(crate) use processes::dev::delete_temporary_data;
pub(crate) use records::get::service_words;

/// Runs the command; returns the exit code of the process.
#[allow(clippy::cognitive_complexity, reason = "one match arm per command")]
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Control(args) => processes::control::run(args).await,
        Command::Agent(args) => processes::agent::run(args).await,
        Command::Proxy(args) => processes::proxy::run(*args).await,
        Command::Kernel(command) => kernel::run(command).await,
        Command::Keyserver(args) => processes::keyserver::run(args).await,
        Command::Lookaside(args) => processes::lookaside::run(args).await,
        Command::Rib(command) => processes::rib::run(command).await,
        Command::Dev(args) => processes::dev::run(args).await,
        Command::Demo(args) => demo::run(args).await.map(|()| ExitCode::SUCCESS).map_err(Failure::failed),
        Command::Register(args) => register::run(args).await,
        Command::Apply(args) => records::apply::run(args).await,
        Command::Diff(args) => records::diff::run(args).await,
        Command::Lint(args) => records::lint::run(args),
        Command::Get(args) => records::get::run(args).await,
        Command::Describe(args) => records::describe::run(args).await,
        Command::History(args) => records::history::run(args).await,
        Command::Rollback(args) => records::rollback::run(args).await,
        Command::Delete(args) => records::delete::run(args).await,
        Command::Drain(args) => drain::run(args).await,
        Command::Undrain(args) => drain::undrain(args).await,
        Command::Shards(command) => shards::run(command).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Audit(args) => audit::run(args).await,
        Command::Security(command) => security::run(command).await,
        Command::Identity(command) => identity::run(command).await,
        Command::Traffic(command) => traffic::run(command).await,
        Command::Imbalance(args) => imbalance::run(args).await,
        Command::Sim(command) => sim::run(command),
        Command::Call(args) => call::run(args).await,
        Command::Calibrate(args) => calibrate::run(args).await,
        Command::Man(args) => man::run(&args),
        Command::Schema => schema::run(),
        Command::Completions { shell } => {
            // The parser accepts the shells that have one.
            let script = cli::completion::script(&shell).unwrap_or_default();
            output::write_bytes(&script).map(|()| ExitCode::SUCCESS)
        }
        Command::Check(args) => check::run(args).await,
        Command::Wait(args) => wait::run(args).await,
        Command::Version(args) => version::run(args).await,
        Command::Tap(args) => tap::run(args).await,
    }
}
