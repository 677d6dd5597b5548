//! `fairmesh history` and `fairmesh rollback`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use fairmesh_model::{
    Record, RecordKey, ServiceName,
    spec::{Document, Plan},
};
use fairmesh_wire::{
    records,
    v1::{Change, GetHistoryRequest, RollbackRequest, outcome},
};
use serde_json::{Value, json};

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output::{self, Listing},
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
            Record::Endpoint(_) | Record::Move(_) | Record::Regions(_) | Record::RoundTrips(_) => None,
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
    let request = RollbackRequest {
        kind: args.of.kind(),
        service: args.of.service.to_string(),
        revision: args.to.unwrap_or_default(),
    };
    let answer = connection.admin().rollback(request).await?.into_inner();
    let outcome = answer.outcomes.first().map_or(outcome::Kind::Unchanged, |outcome| outcome.kind());
    let word = match outcome {
        outcome::Kind::Unchanged => "is unchanged: that value is in force already",
        outcome::Kind::Created => "is there again",
        outcome::Kind::Changed => "has its earlier value again",
        outcome::Kind::Deleted => "is gone again, as it was before",
    };
    let revision = answer.revision.map(|revision| revision.number);
    let kind = args.of.kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let item = json!({
        "kind": kind,
        "service": args.of.service.to_string(),
        "changed": outcome != outcome::Kind::Unchanged,
        "revision": revision,
    });
    output::print_one(args.seen_as.format(), &item, &format!("the {kind} of {} {word}\n", args.of.service))?;
    Ok(ExitCode::SUCCESS)
}
