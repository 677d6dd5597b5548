//! `fairmesh delete`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_wire::v1::{ApplyRequest, Condition, Op, condition, outcome};
use serde_json::json;

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output,
};

use super::{
    strand::{self, Change},
    subject::{self, Kind, Subject},
};

/// What to do rather than to take a declaration away from servers that run.
const WAY_OUT: &str = "stop its servers first (see 'fairmesh get endpoints'), or say --force";

/// Arguments of `fairmesh delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    of: Subject,
    /// Only say what would be deleted.
    #[arg(long)]
    dry_run: bool,
    /// Delete a declaration even though the service has endpoints.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// Deletes what is there now, unless somebody writes it meanwhile; history keeps it.
pub(crate) async fn run(args: DeleteArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.reach).await?;
    let subject = args.of.words();
    let Some(current) = subject::changes(&connection, &args.of).await?.into_iter().next() else {
        return Err(gone(&subject));
    };
    if current.value.is_none() {
        return Err(gone(&subject));
    }
    if !args.force && matches!(args.of.kind, Kind::Service) {
        let change = Change { name: &args.of.service, to: None, mapped: false };
        strand::refuse(&connection, &change, WAY_OUT).await?;
    }
    let condition = Condition { kind: Some(condition::Kind::Revision(current.revision)) };
    let op = Op { key: args.of.key().to_string(), value: None, condition: Some(condition) };
    let request = ApplyRequest { ops: vec![op], dry_run: args.dry_run };
    let answer = connection.admin().apply(request).await?.into_inner();
    let deleted = answer.outcomes.iter().any(|one| one.kind() == outcome::Kind::Deleted);
    let (kind, service) = (args.of.kind_typed(), &args.of.service);
    let item = json!({
        "kind": kind, "service": service.to_string(), "deleted": deleted && !args.dry_run, "dryRun": args.dry_run,
    });
    let text = match args.dry_run {
        true => format!("{subject} would be deleted (revision {})\n", current.revision),
        false => format!("{subject} is deleted; 'fairmesh rollback {kind} {service}' brings it back\n"),
    };
    output::print_one(args.seen_as.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

fn gone(subject: &str) -> Failure {
    Failure::failed(format!("{subject} is not there: it was deleted already"))
}
