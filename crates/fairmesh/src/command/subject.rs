//! The records that have a history: which one a command is about.

use clap::{Args, ValueEnum};
use fairmesh_model::{
    Record, RecordKey, Service, ServiceName,
    spec::{Document, Plan},
};
use fairmesh_wire::{
    handshake::Connection,
    records,
    v1::{Change, GetHistoryRequest},
};
use serde_json::{Value, json};
use tonic::Code;

use crate::failure::Failure;

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

    /// The declaration that a value of this record says; `None` where the record is a policy.
    pub(super) fn declaration(&self, value: &[u8]) -> Result<Option<Service>, Failure> {
        Ok(match records::decode(&self.key(), value)? {
            Record::Service(service) => Some(service),
            _ => None,
        })
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
    match connection.admin().get_history(request).await {
        Ok(answer) => Ok(answer.into_inner().changes),
        Err(status) if status.code() == Code::NotFound => {
            let more = match of.kind {
                Kind::Service => "",
                Kind::Policy => "; a service without one runs on the defaults",
            };
            let hint = format!("check the name with 'fairmesh get {}'{more}", of.kind());
            Err(Failure::failed_with(format!("{} never existed", of.words()), hint))
        }
        Err(status) => Err(status.into()),
    }
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
