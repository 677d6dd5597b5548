//! `fairmesh rollback`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_wire::{
    handshake::Connection,
    v1::{Change, RollbackRequest, outcome},
};
use serde_json::json;

use crate::{
    cli::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};

use super::{
    breaking_change,
    history_key::{self, HistoryKey, Kind, NamedRecord},
};

/// Alternative to deleting or changing a declaration that has running servers.
const HINT: &str = "choose a later revision with --to (see 'fairmesh history service'), or use --force";

/// Arguments of `fairmesh rollback`.
#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    of: HistoryKey,
    /// The revision whose value to restore [default: the one before the current].
    #[arg(long = "to", value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    to: Option<u64>,
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
pub(crate) async fn run(args: RollbackArgs) -> Result<ExitCode, Failure> {
    let of = args.of.record()?;
    let connection = connect::connect(&args.target).await?;
    let chosen = chosen(&connection, &of, args.to).await?;
    let kind = of.kind_argument();
    if !args.force
        && matches!(of.kind, Kind::Service)
        && let Some(name) = of.service()
    {
        let to = chosen.value.as_deref().map(|value| of.declaration(value)).transpose()?.flatten();
        let change = breaking_change::Change { name, to: to.as_ref(), mapped: false };
        breaking_change::refuse(&connection, &change, HINT).await?;
    }
    let subject = of.title();
    let back = chosen.revision;
    if args.dry_run {
        let document = chosen.value.as_deref().map(|value| of.document(value)).transpose()?.flatten();
        let shown = document.as_ref().map_or_else(|| "it did not exist".into(), history_key::one_line);
        let text = format!("{subject} would be as at revision {back}: {shown}\n");
        let item =
            json!({ "service": of.name, "kind": kind, "to": back, "dryRun": true, "document": document });
        output::print_one(args.output_args.format(), &item, &text)?;
        return Ok(ExitCode::SUCCESS);
    }
    // By revision, so that the displayed value is restored whatever is written meanwhile.
    let request = RollbackRequest { kind: of.kind(), service: of.name.clone(), revision: back };
    let answer = connection.admin().rollback(request).await?.into_inner();
    let outcome = answer.outcomes.first().map_or(outcome::Kind::Unchanged, |outcome| outcome.kind());
    let word = match outcome {
        outcome::Kind::Unchanged => "is unchanged: that value is in force already",
        outcome::Kind::Created => "exists again",
        outcome::Kind::Changed => "has its earlier value again",
        outcome::Kind::Deleted => "is deleted again, as it was before",
    };
    let item = json!({
        "kind": kind,
        "service": of.name,
        "to": back,
        "changed": outcome != outcome::Kind::Unchanged,
        "revision": answer.revision.map(|revision| revision.number),
    });
    output::print_one(args.output_args.format(), &item, &format!("{subject} {word} (revision {back})\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The value to restore: the given one, or the one before the current.
async fn chosen(connection: &Connection, of: &NamedRecord, to: Option<u64>) -> Result<Change, Failure> {
    let mut changes = history_key::changes(connection, of).await?;
    let found = match to {
        Some(to) => changes.iter().position(|change| change.revision == to),
        None => (changes.len() > 1).then_some(1),
    };
    if let Some(found) = found {
        return Ok(changes.swap_remove(found));
    }
    let known: Vec<_> = changes.iter().skip(1).map(|change| change.revision.to_string()).collect();
    let (service, kept) = (of.title(), known.join(", "));
    Err(match to {
        Some(to) if !known.is_empty() => Failure::failed_with(
            format!("no value of {service} at revision {to} is kept"),
            format!("choose one of {kept}"),
        ),
        _ => Failure::failed(format!("{service} has no earlier value to restore")),
    })
}
