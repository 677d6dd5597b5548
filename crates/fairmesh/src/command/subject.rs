//! The records that have a history: which one a command is about.

use clap::{Args, ValueEnum};
use fairmesh_model::{
    Record, RecordKey, ServiceName, counted,
    spec::{Document, Plan},
};
use fairmesh_wire::{
    handshake::Connection,
    records,
    v1::{Change, GetHistoryRequest},
};
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    view::{Scope, View},
};

/// What has a history.
#[derive(Clone, Debug, Args)]
pub(crate) struct Subject {
    /// Which record.
    #[arg(value_enum)]
    pub(super) kind: Kind,
    /// Its service, as tenant/service.
    pub(super) service: ServiceName,
}

/// A record that has a history.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Kind {
    /// What the service is.
    #[value(alias = "services")]
    Service,
    /// How calls to it are routed.
    #[value(alias = "policies")]
    Policy,
}

impl Subject {
    /// What a person calls the record: `the policy of shop/cart`.
    pub(super) fn words(&self) -> String {
        format!("the {} of {}", self.kind_typed(), self.service)
    }

    /// The kind as it is typed.
    pub(super) fn kind_typed(&self) -> String {
        self.kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The kind as the admin API calls it.
    pub(super) fn kind(&self) -> String {
        match self.kind {
            Kind::Service => "services".into(),
            Kind::Policy => "policies".into(),
        }
    }

    pub(super) fn key(&self) -> RecordKey {
        match self.kind {
            Kind::Service => RecordKey::Service(self.service.clone()),
            Kind::Policy => RecordKey::Policy(self.service.clone()),
        }
    }

    pub(super) fn document(&self, value: &[u8]) -> Result<Option<Document>, Failure> {
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

/// The value in force and the earlier ones, newest first.
pub(super) async fn changes(connection: &Connection, of: &Subject) -> Result<Vec<Change>, Failure> {
    let request = GetHistoryRequest { kind: of.kind(), service: of.service.to_string() };
    Ok(connection.admin().get_history(request).await?.into_inner().changes)
}

/// A document in one line, without what the command line says already.
pub(super) fn one_line(document: &Document) -> String {
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

/// Refuses to take a declaration away that servers and callers still use; `way_out` says what to do instead.
pub(super) async fn refuse_to_strand(
    connection: &Connection,
    of: &Subject,
    way_out: &str,
) -> Result<(), Failure> {
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
            "this would delete the declaration of {}, which has {}: calls to it would fail",
            of.service,
            counted(count, "endpoint")
        ),
        way_out,
    ))
}
