//! Keys of records that have a history.

use clap::{Args, ValueEnum};
use fairmesh_model::{
    Record, RecordKey, Service, ServiceName,
    spec::{Document, Resource},
};
use fairmesh_wire::{
    handshake::Connection,
    records,
    v1::{Change, GetHistoryRequest},
};
use serde_json::{Value, json};
use tonic::Code;

use crate::failure::Failure;

/// A record that has a history.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryKey {
    /// The kind of record.
    #[arg(value_enum)]
    pub(super) kind: Kind,
    /// The service, as tenant/service.
    pub(super) service: ServiceName,
}

/// A kind of record that has a history.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Kind {
    /// The declaration of the service.
    #[value(alias = "services")]
    Service,
    /// The routing policy of the service.
    #[value(alias = "policies")]
    Policy,
    /// The programs that may have the identity of the service.
    #[value(alias = "workloads")]
    Workload,
}

impl HistoryKey {
    /// The record in words: `the policy of shop/cart`.
    pub(super) fn title(&self) -> String {
        format!("the {} of {}", self.kind_argument(), self.service)
    }

    /// The kind as an argument.
    pub(super) fn kind_argument(&self) -> String {
        self.kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The kind in the admin API.
    pub(super) fn kind(&self) -> String {
        match self.kind {
            Kind::Service => "services".into(),
            Kind::Policy => "policies".into(),
            Kind::Workload => "workloads".into(),
        }
    }

    pub(super) fn key(&self) -> RecordKey {
        match self.kind {
            Kind::Service => RecordKey::Service(self.service.clone()),
            Kind::Policy => RecordKey::Policy(self.service.clone()),
            Kind::Workload => RecordKey::Workload(self.service.clone()),
        }
    }

    /// Decodes the declaration in a value of this record; `None` if the record is of another kind.
    pub(super) fn declaration(&self, value: &[u8]) -> Result<Option<Service>, Failure> {
        Ok(match records::decode(&self.key(), value)? {
            Record::Service(service) => Some(service),
            _ => None,
        })
    }

    pub(super) fn document(&self, value: &[u8]) -> Result<Option<Document>, Failure> {
        let name = self.service.clone();
        Ok(match records::decode(&self.key(), value)? {
            Record::Service(service) => Some(Document::from(&Resource::Service(name, service))),
            Record::Policy(policy) => Some(Document::from(&Resource::Policy(name, policy))),
            Record::Workload(entry) => Some(Document::from(&Resource::Workload(name, entry))),
            Record::Endpoint(_)
            | Record::Verdict(_)
            | Record::Move(_)
            | Record::RegionTable(_)
            | Record::RegionDrain(_)
            | Record::Regions(_)
            | Record::RoundTrips(_)
            | Record::MeasuredDistances(_)
            | Record::Hosts(_)
            | Record::TrustBundle(_)
            | Record::JoinedAgent(_)
            | Record::DefaultAuthorization(_)
            | Record::RoleBinding(_) => None,
        })
    }
}

/// The current value and the earlier ones, newest first.
pub(super) async fn changes(connection: &Connection, of: &HistoryKey) -> Result<Vec<Change>, Failure> {
    let request = GetHistoryRequest { kind: of.kind(), service: of.service.to_string() };
    match connection.admin().get_history(request).await {
        Ok(answer) => Ok(answer.into_inner().changes),
        Err(status) if status.code() == Code::NotFound => {
            let more = match of.kind {
                Kind::Service | Kind::Workload => "",
                Kind::Policy => "; a service without one has the defaults",
            };
            let hint = format!("check the name with 'fairmesh get {}'{more}", of.kind());
            Err(Failure::failed_with(format!("{} never existed", of.title()), hint))
        }
        Err(status) => Err(status.into()),
    }
}

/// A document in one line, without its kind and name.
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
