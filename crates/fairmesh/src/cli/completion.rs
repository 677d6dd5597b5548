//! Completion in shells: of the same tree of commands that parses arguments, and of the names of services.
//!
//! The script that `fairmesh completions` prints calls this binary for each completion, with `COMPLETE` set, so that it
//! completes what this release takes, and services that exist now.

use std::{any::TypeId, env, ffi::OsStr, time::Duration};

use clap::{Arg, Command};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCompleter, CompletionCandidate},
    env::Shells,
};
use fairmesh_model::ServiceName;
use tokio::{runtime::Builder, time::timeout};

use super::TargetArgs;
use crate::{
    connect,
    view::{Scope, View},
};

/// Time limit for the names of services: a person waits.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(700);

/// The variable by which the script asks for candidates.
const VARIABLE: &str = "COMPLETE";

/// Prints candidates and ends the process, if a shell asks for them.
pub(crate) fn complete_if_asked() {
    CompleteEnv::with_factory(|| with_services(super::command())).var(VARIABLE).complete();
}

/// The script of a shell; `None` if it has none.
pub(crate) fn script(shell: &str) -> Option<Vec<u8>> {
    let mut script = Vec::new();
    let completer = Shells::builtins();
    let completer = completer.completer(shell)?;
    completer.write_registration(VARIABLE, "fairmesh", "fairmesh", "fairmesh", &mut script).ok()?;
    Some(script)
}

/// Has every argument that is a service offer those that exist.
fn with_services(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command =
        names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_services));
    command.mut_args(|argument: Arg| {
        match argument.get_value_parser().type_id() == TypeId::of::<ServiceName>() {
            true => argument.add(ArgValueCompleter::new(services)),
            false => argument,
        }
    })
}

fn services(current: &OsStr) -> Vec<CompletionCandidate> {
    let begun = current.to_string_lossy();
    let found = Builder::new_current_thread().enable_all().build().ok();
    let found =
        found.and_then(|runtime| runtime.block_on(async { timeout(LOOKUP_TIMEOUT, names()).await.ok()? }));
    let names = found.unwrap_or_default().into_iter().filter(|name| name.starts_with(&*begun));
    names.map(CompletionCandidate::new).collect()
}

/// The names of services at the control plane that the environment names, or of this machine.
async fn names() -> Option<Vec<String>> {
    let named = env::var("FAIRMESH_CONTROL").ok().and_then(|text| text.parse().ok());
    let target = TargetArgs::without_token(named);
    let connection = connect::connect(&target).await.ok()?;
    let view = View::read(&connection, &Scope::All, &["services"]).await.ok()?;
    Some(view.services.keys().map(ToString::to_string).collect())
}
