//! `fairmesh delete`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_wire::v1::{ApplyRequest, outcome};
use serde_json::json;

use crate::{
    cli::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};

use super::{
    breaking_change::{self, Change},
    history_key::{self, HistoryKey, Kind, Version},
};

/// Alternative to deleting a declaration that has running servers.
const HINT: &str = "stop its servers first (see 'fairmesh get endpoints'), or use --force";

/// Arguments of `fairmesh delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    of: HistoryKey,
    /// Why, for the history.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
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
    args.of.validate()?;
    let connection = connect::connect(&args.target).await?;
    let subject = args.of.title();
    let Some(current) = history_key::versions(&connection, &args.of).await?.into_iter().next() else {
        return Err(not_found(&subject));
    };
    if current.values.iter().all(Option::is_none) {
        return Err(not_found(&subject));
    }
    if let (Some(name), Kind::Service, false) = (args.of.service(), args.of.kind, args.force) {
        let change = Change { name, to: None, mapped: false };
        breaking_change::refuse(&connection, &change, HINT).await?;
    }
    // A topology has two records, of which either may be the older one.
    let unchanged = current.stored_revision;
    let gone = Version { values: vec![None; current.values.len()], ..current.clone() };
    let request = ApplyRequest {
        ops: args.of.ops(&gone, unchanged),
        dry_run: args.dry_run,
        message: args.message.clone().unwrap_or_default(),
    };
    let answer = connection.admin().apply(request).await?.into_inner();
    let deleted = answer.outcomes.iter().any(|one| one.kind() == outcome::Kind::Deleted);
    let (kind, service) = (args.of.kind_argument(), args.of.name());
    let item = json!({
        "kind": kind, "service": service, "deleted": deleted && !args.dry_run, "dryRun": args.dry_run,
    });
    let text = match args.dry_run {
        true => format!("{subject} would be deleted (revision {})\n", current.revision),
        false if args.of.kind == Kind::Role => {
            let keys: Vec<_> = args.of.records().iter().map(|record| record.key.to_string()).collect();
            format!("{subject} is deleted; 'fairmesh audit --key {}' shows what it was\n", keys.join(" "))
        }
        false => format!("{subject} is deleted; 'fairmesh rollback {}' restores it\n", args.of.arguments()),
    };
    output::print_one(args.output_args.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

fn not_found(subject: &str) -> Failure {
    Failure::failed(format!("{subject} does not exist: it was deleted already"))
}
