//! `fairmesh delete`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_wire::v1::{ApplyRequest, Condition, Op, condition, outcome};
use serde_json::json;

use crate::{
    cli::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};

use super::{
    breaking_change::{self, Change},
    history_key::{self, HistoryKey, Kind},
};

/// Alternative to deleting a declaration that has running servers.
const HINT: &str = "stop its servers first (see 'fairmesh get endpoints'), or use --force";

/// Arguments of `fairmesh delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    of: HistoryKey,
    /// Only report what would be deleted.
    #[arg(long)]
    dry_run: bool,
    /// Delete a declaration even though the service has endpoints.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Deletes the current value, unless it is changed concurrently; history keeps it.
pub(crate) async fn run(args: DeleteArgs) -> Result<ExitCode, Failure> {
    let of = args.of.record()?;
    let connection = connect::connect(&args.target).await?;
    let subject = of.title();
    let Some(current) = history_key::changes(&connection, &of).await?.into_iter().next() else {
        return Err(not_found(&subject));
    };
    if current.value.is_none() {
        return Err(not_found(&subject));
    }
    if !args.force
        && matches!(of.kind, Kind::Service)
        && let Some(name) = of.service()
    {
        let change = Change { name, to: None, mapped: false };
        breaking_change::refuse(&connection, &change, HINT).await?;
    }
    let condition = Condition { kind: Some(condition::Kind::Revision(current.revision)) };
    let op = Op { key: of.key.to_string(), value: None, condition: Some(condition) };
    let request = ApplyRequest { ops: vec![op], dry_run: args.dry_run };
    let answer = connection.admin().apply(request).await?.into_inner();
    let deleted = answer.outcomes.iter().any(|one| one.kind() == outcome::Kind::Deleted);
    let (kind, name) = (of.kind_argument(), &of.name);
    let item = json!({
        "kind": kind, "service": name, "deleted": deleted && !args.dry_run, "dryRun": args.dry_run,
    });
    let text = match args.dry_run {
        true => format!("{subject} would be deleted (revision {})\n", current.revision),
        false if matches!(of.kind, Kind::Role | Kind::Authorization) => {
            format!("{subject} is deleted; 'fairmesh audit --key {}' shows what it was\n", of.key)
        }
        false => format!("{subject} is deleted; 'fairmesh rollback {kind} {name}' restores it\n"),
    };
    output::print_one(args.output_args.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

fn not_found(subject: &str) -> Failure {
    Failure::failed(format!("{subject} does not exist: it was deleted already"))
}
