//! Runs commands.

use std::process::ExitCode;

use fairmesh_cli::{
    audit, calibrate, call, check, dev, drain, explain, identity, records, schema, security, shards, sim,
    version, wait,
};
use fairmesh_console::{failure::Failure, output};
use fairmesh_processes::{
    agent, control, dns, gateway, kernel, keyserver, lookaside, node, proxy, register, rib,
};
use fairmesh_traffic::{cost, imbalance, probe, tap, trace, traffic};

use crate::{
    cli::{self, Cli, Command},
    man,
};

/// Runs the command; returns the exit code of the process.
#[allow(clippy::cognitive_complexity, clippy::too_many_lines, reason = "one match arm per command")]
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Control(args) => control::run(args).await,
        Command::Agent(args) => agent::run(args).await,
        Command::Proxy(args) => proxy::run(*args).await,
        Command::Dns(args) => dns::run(args).await,
        Command::Kernel(command) => kernel::run(command).await,
        Command::Keyserver(args) => keyserver::run(args).await,
        Command::Gateway(args) => gateway::run(*args).await,
        Command::Node(args) => node::run(*args).await,
        Command::Lookaside(args) => lookaside::run(args).await,
        Command::Rib(command) => rib::run(command).await,
        Command::Dev(args) => dev::run(args).await,
        Command::Demo(args) => {
            fairmesh_demo::run(args).await.map(|()| ExitCode::SUCCESS).map_err(Failure::failed)
        }
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
        Command::Probe(args) => probe::run(args).await,
        Command::Cost(args) => cost::run(args).await,
        Command::Trace(args) => trace::run(args).await,
        Command::Top(args) => fairmesh_top::run(args).await,
        Command::Sim(command) => sim::run(command),
        Command::Call(args) => call::run(args).await,
        Command::Calibrate(args) => calibrate::run(args).await,
        Command::Man(args) => man::run(&args),
        Command::Schema => schema::run(),
        Command::Completions { shell } => {
            // The parser accepts only shells that have a completion script.
            let script = cli::completion::script(&shell).unwrap_or_default();
            output::write_bytes(&script).map(|()| ExitCode::SUCCESS)
        }
        Command::Check(args) => check::run(args).await,
        Command::Wait(args) => wait::run(args).await,
        Command::Version(args) => version::run(args).await,
        Command::Tap(args) => tap::run(args).await,
    }
}
