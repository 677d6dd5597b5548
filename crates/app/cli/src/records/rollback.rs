//! `fairmesh rollback`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_model::RecordKind;
use fairmesh_wire::{
    handshake::Connection,
    v1::{ApplyRequest, outcome},
};
use serde_json::json;

use super::{
    apply::warnings::wider_access,
    breaking_change,
    history_key::{self, HistoryKey, Version},
};

/// Hint for deleting or changing a declaration that has running servers.
const HINT: &str = "choose a later revision with --to (see 'fairmesh history service'), or use --force";

/// Arguments of `fairmesh rollback`.
#[derive(Debug, Args)]
pub struct RollbackArgs {
    #[command(flatten)]
    of: HistoryKey,
    /// The revision whose value to restore [default: the one before the current].
    #[arg(long = "to", value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    to: Option<u64>,
    /// Why, for the history.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Only report what would be restored.
    #[arg(long)]
    dry_run: bool,
    /// Do so even though the service has endpoints, and calls to them would fail.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Restores an earlier value.
pub async fn run(args: RollbackArgs) -> Result<ExitCode, Failure> {
    args.of.validate()?;
    let connection = connect::connect(&args.target).await?;
    let chosen = chosen(&connection, &args).await?;
    refuse_breaking_change(&connection, &args, &chosen).await?;
    for (key, value) in args.of.records().iter().zip(&chosen.values) {
        wider_access::warn_of_record(&connection, key, value.as_deref()).await?;
    }
    match args.dry_run {
        true => report_dry_run(&args, &chosen)?,
        false => restore(&connection, &args, &chosen).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn refuse_breaking_change(
    connection: &Connection,
    args: &RollbackArgs,
    chosen: &Version,
) -> Result<(), Failure> {
    match (args.of.service(), args.of.kind.includes(RecordKind::Service)) {
        (Some(name), true) if !args.force => {
            let to = args.of.declaration(chosen)?;
            let change = breaking_change::Change { name, to: to.as_ref(), mapped: false };
            breaking_change::refuse(connection, &change, HINT).await
        }
        _ => Ok(()),
    }
}

fn report_dry_run(args: &RollbackArgs, chosen: &Version) -> Result<(), Failure> {
    let (subject, back) = (args.of.title(), chosen.revision);
    let document = args.of.document(chosen)?;
    let shown = document.as_ref().map_or_else(|| "it did not exist".into(), history_key::one_line);
    let text = format!("{subject} would be as at revision {back}: {shown}\n");
    let item = json!({
        "service": args.of.name(),
        "kind": args.of.kind.name(),
        "to": back,
        "dryRun": true,
        "document": document,
    });
    output::print_one(args.output_args.format(), &item, &text)
}

/// Writes the version that was shown, even if the history changes meanwhile.
async fn restore(connection: &Connection, args: &RollbackArgs, chosen: &Version) -> Result<(), Failure> {
    let (subject, back) = (args.of.title(), chosen.revision);
    let message = args.message.clone().unwrap_or_default();
    let request = ApplyRequest { ops: args.of.ops(chosen, None), message, ..ApplyRequest::default() };
    let answer = connection.admin().apply(request).await?.into_inner();
    let outcomes = answer.outcomes.iter().map(|outcome| outcome.kind());
    let outcome = outcomes.rev().find(|kind| *kind != outcome::Kind::Unchanged);
    let now = answer.revision.map(|revision| revision.number);
    let text = match (outcome, now) {
        (None | Some(outcome::Kind::Unchanged), _) | (_, None) => {
            format!("{subject} is unchanged: the value of revision {back} is in force already\n")
        }
        (Some(outcome::Kind::Deleted), Some(now)) => {
            format!("{subject} is deleted again, as it was before (since revision {now})\n")
        }
        (Some(outcome::Kind::Created), Some(now)) => {
            format!("{subject} exists again: it has the value of revision {back}, as revision {now}\n")
        }
        (Some(outcome::Kind::Changed), Some(now)) => {
            format!("{subject} has the value of revision {back} again, as revision {now}\n")
        }
    };
    let item = json!({
        "kind": args.of.kind.name(),
        "service": args.of.name(),
        "to": back,
        "changed": outcome.is_some(),
        "revision": now,
    });
    output::print_one(args.output_args.format(), &item, &text)
}

/// The version to restore: the given one, or the one before the current.
async fn chosen(connection: &Connection, args: &RollbackArgs) -> Result<Version, Failure> {
    let mut versions = history_key::versions(connection, &args.of).await?;
    let found = match args.to {
        Some(to) => versions.iter().position(|version| version.revision == to),
        None => (versions.len() > 1).then_some(1),
    };
    if let Some(found) = found {
        return Ok(versions.swap_remove(found));
    }
    let known: Vec<_> = versions.iter().skip(1).map(|version| version.revision.to_string()).collect();
    let (subject, kept) = (args.of.title(), known.join(", "));
    Err(match args.to {
        Some(to) if !known.is_empty() => Failure::failed_with(
            format!("no value of {subject} at revision {to} is kept"),
            format!("choose one of {kept}"),
        ),
        _ => Failure::failed(format!("{subject} has no earlier value to restore")),
    })
}
