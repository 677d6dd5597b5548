//! `fairmesh history` and `fairmesh rollback`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use fairmesh_model::{
    Record, RecordKey, ServiceName,
    spec::{Document, Plan},
};
use fairmesh_wire::{
    handshake::Connection,
    records,
    v1::{Change, GetHistoryRequest, RollbackRequest, outcome},
};
use serde_json::{Value, json};

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output::{self, Listing},
    view::{Scope, View},
};

/// Arguments of `fairmesh history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    of: Subject,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

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
    /// Take a declaration away even though the service has endpoints.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// What has a history.
#[derive(Clone, Debug, Args)]
struct Subject {
    /// Which record.
    #[arg(value_enum)]
    kind: Kind,
    /// Its service, as tenant/service.
    service: ServiceName,
}

/// A record that has a history.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// What the service is.
    #[value(alias = "services")]
    Service,
    /// How calls to it are routed.
    #[value(alias = "policies")]
    Policy,
}

impl Subject {
    /// The kind as the admin API calls it.
    fn kind(&self) -> String {
        match self.kind {
            Kind::Service => "services".into(),
            Kind::Policy => "policies".into(),
        }
    }

    fn key(&self) -> RecordKey {
        match self.kind {
            Kind::Service => RecordKey::Service(self.service.clone()),
            Kind::Policy => RecordKey::Policy(self.service.clone()),
        }
    }

    fn document(&self, value: &[u8]) -> Result<Option<Document>, Failure> {
        let name = self.service.clone();
        Ok(match records::decode(&self.key(), value)? {
            Record::Service(service) => Some(Document::from(&Plan::Service(name, service))),
            Record::Policy(policy) => Some(Document::from(&Plan::Policy(name, policy))),
            Record::Endpoint(_)
            | Record::Verdict(_)
            | Record::Move(_)
            | Record::Regions(_)
            | Record::RoundTrips(_)
            | Record::Hosts(_) => None,
        })
    }
}

/// Lists earlier values, newest first.
pub(crate) async fn run(args: HistoryArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.reach).await?;
    let request = GetHistoryRequest { kind: args.of.kind(), service: args.of.service.to_string() };
    let changes = connection.admin().get_history(request).await?.into_inner().changes;
    let mut listing = Listing::new(&["REVISION", "REPLACED", "BY", "VALUE"]);
    for change in &changes {
        add(&args.of, change, &mut listing)?;
    }
    listing.print(args.seen_as.format())?;
    Ok(ExitCode::SUCCESS)
}

fn add(of: &Subject, change: &Change, listing: &mut Listing) -> Result<(), Failure> {
    let document = change.value.as_deref().map(|value| of.document(value)).transpose()?.flatten();
    let replaced = replaced(change);
    let shown = match &document {
        Some(document) => one_line(document),
        None => "did not exist".into(),
    };
    listing.add(
        vec![
            change.revision.to_string(),
            replaced.clone().unwrap_or_else(|| "current".into()),
            change.replaced_by.clone(),
            shown,
        ],
        json!({
            "revision": change.revision,
            "current": replaced.is_none(),
            "replacedAt": replaced,
            "replacedBy": change.replaced_by,
            "document": document,
        }),
    );
    Ok(())
}

/// When the value was replaced, or `None` while it is in force.
fn replaced(change: &Change) -> Option<String> {
    if change.replaced_at_ms == 0 {
        return None;
    }
    let at =
        i64::try_from(change.replaced_at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    Some(at.map_or_else(|| "at an unknown time".into(), |at| format!("{at:.0}")))
}

/// A document in one line, without what the command line says already.
fn one_line(document: &Document) -> String {
    let mut value = json!(document);
    if let Value::Object(fields) = &mut value {
        for said in ["kind", "name", "service"] {
            fields.remove(said);
        }
    }
    let text = value.to_string();
    let mut cut: String = text.chars().take(80).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

/// Puts an earlier value back.
pub(crate) async fn roll_back(args: RollbackArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.reach).await?;
    let chosen = chosen(&connection, &args).await?;
    let kind = args.of.kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    if chosen.value.is_none() && !args.force {
        refuse_to_strand(&connection, &args.of).await?;
    }
    let subject = format!("the {kind} of {}", args.of.service);
    let back = chosen.revision;
    if args.dry_run {
        let document = chosen.value.as_deref().map(|value| args.of.document(value)).transpose()?.flatten();
        let shown = document.as_ref().map_or_else(|| "it did not exist".into(), one_line);
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
    let request = GetHistoryRequest { kind: of.kind(), service: of.service.to_string() };
    let mut changes = connection.admin().get_history(request).await?.into_inner().changes;
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

/// Refuses to take a declaration away that servers and callers still use.
async fn refuse_to_strand(connection: &Connection, of: &Subject) -> Result<(), Failure> {
    if matches!(of.kind, Kind::Policy) {
        return Ok(());
    }
    let view = View::read(connection, &Scope::Service(of.service.clone()), &["endpoints"]).await?;
    let count = view.services.get(&of.service).map_or(0, |of| of.endpoints.len());
    if count == 0 {
        return Ok(());
    }
    Err(Failure::failed_with(
        format!(
            "this would delete the declaration of {}, which has {count} endpoints: calls to it would fail",
            of.service
        ),
        "choose a later revision with --to (see 'fairmesh history service'), or say --force",
    ))
}
