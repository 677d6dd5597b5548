//! Shell completion of commands and options, from the tree that parses arguments, and of service names.
//!
//! The script that `fairmesh completions` prints calls this binary for each completion, with `COMPLETE` set. Completion
//! therefore offers what this release accepts and the services that exist now.

use std::{any::TypeId, env, ffi::OsStr, time::Duration};

use clap::{Arg, Command};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCompleter, CompletionCandidate},
    env::Shells,
};
use fairmesh_console::{
    arguments::TargetArgs,
    connect,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{RecordKind, ServiceName};
use fairmesh_wire::handshake::Connection;
use tokio::{runtime::Builder, time::timeout};

/// Timeout for reading names from the control plane while a person waits.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(700);

/// Environment variable that makes this binary print completion candidates.
const VARIABLE: &str = "COMPLETE";

/// Prints candidates and ends the process if `COMPLETE` is set.
pub(crate) fn complete_if_asked() {
    CompleteEnv::with_factory(|| with_services(super::command())).var(VARIABLE).complete();
}

/// Completion script for a shell; `None` if the shell is not supported.
pub(crate) fn script(shell: &str) -> Option<Vec<u8>> {
    let mut script = Vec::new();
    let completer = Shells::builtins();
    let completer = completer.completer(shell)?;
    completer.write_registration(VARIABLE, "fairmesh", "fairmesh", "fairmesh", &mut script).ok()?;
    Some(script)
}

/// Adds completion of existing names to every argument that is a service, an instance or a kind.
fn with_services(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command =
        names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_services));
    let of = command.get_name().to_owned();
    command.mut_args(|argument: Arg| {
        let is_service = argument.get_value_parser().type_id() == TypeId::of::<ServiceName>();
        match (of.as_str(), argument.get_id().as_str()) {
            ("describe", "subject") => argument.add(ArgValueCompleter::new(kinds_and_services)),
            ("wait", "subjects") => argument.add(ArgValueCompleter::new(processes_and_services)),
            ("drain" | "undrain", "instances") => argument.add(ArgValueCompleter::new(instances)),
            ("drain" | "undrain", "service") | ("describe" | "delete" | "history" | "rollback", "name") => {
                argument.add(ArgValueCompleter::new(services))
            }
            _ if is_service => argument.add(ArgValueCompleter::new(services)),
            _ => argument,
        }
    })
}

fn services(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = waited_for(async {
        let view =
            View::read_silently(&connection().await?, &Scope::All, &[RecordKind::Service]).await.ok()?;
        Some(view.services.keys().map(ToString::to_string).collect())
    });
    begun_by(current, found)
}

fn kinds_and_services(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = begun_by(current, ["service", "endpoint", "region", "host"].map(str::to_owned));
    all.extend(services(current));
    all
}

fn processes_and_services(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = begun_by(current, ["control", "agent", "proxy"].map(str::to_owned));
    all.extend(services(current));
    all
}

/// Instances of the service named earlier on the command line.
fn instances(current: &OsStr) -> Vec<CompletionCandidate> {
    // The words of the completed line follow `--`. The first is the path of this program.
    let mut words = env::args().skip_while(|word| word != "--").skip(2);
    let Some(service) = words.find_map(|word| word.parse::<ServiceName>().ok()) else {
        return Vec::new();
    };
    let found = waited_for(async {
        let scope = Scope::Service(service.clone());
        let view = View::read_silently(&connection().await?, &scope, &[RecordKind::Endpoint]).await.ok()?;
        let endpoints = view.services.get(&service).into_iter().flat_map(|one| &one.endpoints);
        Some(endpoints.map(|at| at.value.instance.to_string()).collect())
    });
    begun_by(current, found)
}

/// Candidates that start with the typed text.
fn begun_by(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let begun = current.to_string_lossy();
    let names = names.into_iter().filter(|name| name.starts_with(&*begun));
    names.map(CompletionCandidate::new).collect()
}

/// Waits for names from the control plane. Returns no names if it takes longer than [`LOOKUP_TIMEOUT`].
fn waited_for(names: impl Future<Output = Option<Vec<String>>>) -> Vec<String> {
    let runtime = Builder::new_current_thread().enable_all().build().ok();
    let found =
        runtime.and_then(|runtime| runtime.block_on(async { timeout(LOOKUP_TIMEOUT, names).await.ok()? }));
    found.unwrap_or_default()
}

/// Connection to the control plane named in the environment, otherwise to the one on this machine.
async fn connection() -> Option<Connection> {
    let named = env::var("FAIRMESH_CONTROL").unwrap_or_default();
    // The first one only: a completion has no time for others.
    let first = named.split(',').next().and_then(|text| text.trim().parse().ok());
    connect::connect(&TargetArgs::without_token(first.into_iter().collect())).await.ok()
}
