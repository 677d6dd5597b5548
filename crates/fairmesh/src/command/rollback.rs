//! `fairmesh rollback`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_wire::{
    handshake::Connection,
    v1::{Change, RollbackRequest, outcome},
};
use serde_json::json;

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output,
};

use super::{
    strand,
    subject::{self, Kind, Subject},
};

/// What to do rather than to take a declaration away from servers that run, or change it under them.
const WAY_OUT: &str = "choose a later revision with --to (see 'fairmesh history service'), or say --force";

/// Arguments of `fairmesh rollback`.
#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    of: Subject,
    /// The revision whose value to put back [default: the one before the current].
    #[arg(long = "to", value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    to: Option<u64>,
    /// Only say what would be put back.
    #[arg(long)]
    dry_run: bool,
    /// Do so even though the service has endpoints, and calls to them would fail.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// Puts an earlier value back.
pub(crate) async fn run(args: RollbackArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.reach).await?;
    let chosen = chosen(&connection, &args).await?;
    let kind = args.of.kind_typed();
    if !args.force && matches!(args.of.kind, Kind::Service) {
        let to = chosen.value.as_deref().map(|value| args.of.declaration(value)).transpose()?.flatten();
        let change = strand::Change { name: &args.of.service, to: to.as_ref(), mapped: false };
        strand::refuse(&connection, &change, WAY_OUT).await?;
    }
    let subject = args.of.words();
    let back = chosen.revision;
    if args.dry_run {
        let document = chosen.value.as_deref().map(|value| args.of.document(value)).transpose()?.flatten();
        let shown = document.as_ref().map_or_else(|| "it did not exist".into(), subject::one_line);
        let text = format!("{subject} would be as at revision {back}: {shown}\n");
        let item = json!({ "service": args.of.service.to_string(), "kind": kind, "to": back, "dryRun": true, "document": document });
        output::print_one(args.seen_as.format(), &item, &text)?;
        return Ok(ExitCode::SUCCESS);
    }
    // By number, so that what is put back is what was looked at, whatever is written meanwhile.
    let request =
        RollbackRequest { kind: args.of.kind(), service: args.of.service.to_string(), revision: back };
    let answer = connection.admin().rollback(request).await?.into_inner();
    let outcome = answer.outcomes.first().map_or(outcome::Kind::Unchanged, |outcome| outcome.kind());
    let word = match outcome {
        outcome::Kind::Unchanged => "is unchanged: that value is in force already",
        outcome::Kind::Created => "is there again",
        outcome::Kind::Changed => "has its earlier value again",
        outcome::Kind::Deleted => "is gone again, as it was before",
    };
    let item = json!({
        "kind": kind,
        "service": args.of.service.to_string(),
        "to": back,
        "changed": outcome != outcome::Kind::Unchanged,
        "revision": answer.revision.map(|revision| revision.number),
    });
    output::print_one(args.seen_as.format(), &item, &format!("{subject} {word} (revision {back})\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The value to put back: the one asked for, or the one before the current.
async fn chosen(connection: &Connection, args: &RollbackArgs) -> Result<Change, Failure> {
    let of = &args.of;
    let mut changes = subject::changes(connection, of).await?;
    let found = match args.to {
        Some(to) => changes.iter().position(|change| change.revision == to),
        None => (changes.len() > 1).then_some(1),
    };
    if let Some(found) = found {
        return Ok(changes.swap_remove(found));
    }
    let known: Vec<_> = changes.iter().skip(1).map(|change| change.revision.to_string()).collect();
    let (service, kept) = (&of.service, known.join(", "));
    Err(match args.to {
        Some(to) if !known.is_empty() => Failure::failed_with(
            format!("no value of {service} at revision {to} is kept"),
            format!("choose one of {kept}"),
        ),
        _ => Failure::failed(format!("{service} has no earlier value to go back to")),
    })
}
