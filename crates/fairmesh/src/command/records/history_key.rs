//! Keys of records that have a history.

use clap::{Args, ValueEnum};
use fairmesh_model::{
    Label, Record, RecordKey, Service, ServiceName,
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

/// A record that is named on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryKey {
    /// The kind of record.
    #[arg(value_enum)]
    kind: Kind,
    /// The service, as tenant/service, or the name of a role binding; the default authorization has none.
    name: Option<String>,
}

/// The record of a [`HistoryKey`].
#[derive(Clone, Debug)]
pub(super) struct NamedRecord {
    pub(super) kind: Kind,
    /// As given; empty if the record has no name.
    pub(super) name: String,
    pub(super) key: RecordKey,
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
    /// Who may do what with the records; without history.
    #[value(aliases = ["roles", "rolebinding"])]
    Role,
    /// What applies to services without authorization; without history.
    Authorization,
}

impl HistoryKey {
    /// The record.
    pub(super) fn record(&self) -> Result<NamedRecord, Failure> {
        let name = self.name.clone().unwrap_or_default();
        let service = || name.parse::<ServiceName>().map_err(Failure::from);
        let key = match self.kind {
            Kind::Service => RecordKey::Service(service()?),
            Kind::Policy => RecordKey::Policy(service()?),
            Kind::Workload => RecordKey::Workload(service()?),
            Kind::Role => RecordKey::RoleBinding(Label::new(name.clone())?),
            Kind::Authorization if name.is_empty() => RecordKey::DefaultAuthorization,
            Kind::Authorization => {
                let hint = "leave the name out; the rules of a service are in its policy";
                return Err(Failure::refused("the default authorization has no name", hint));
            }
        };
        Ok(NamedRecord { kind: self.kind, name, key })
    }
}

impl NamedRecord {
    /// The record in words: `the policy of shop/cart`.
    pub(super) fn title(&self) -> String {
        match self.kind {
            Kind::Service | Kind::Policy | Kind::Workload => {
                format!("the {} of {}", self.kind_argument(), self.name)
            }
            Kind::Role => format!("the role binding {}", self.name),
            Kind::Authorization => "the default authorization".into(),
        }
    }

    /// The service of the record, if it belongs to one.
    pub(super) fn service(&self) -> Option<&ServiceName> {
        self.key.service()
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
            Kind::Role => "roles".into(),
            Kind::Authorization => "authorization".into(),
        }
    }

    /// Decodes the declaration in a value of this record; `None` if the record is of another kind.
    pub(super) fn declaration(&self, value: &[u8]) -> Result<Option<Service>, Failure> {
        Ok(match records::decode(&self.key, value)? {
            Record::Service(service) => Some(service),
            _ => None,
        })
    }

    pub(super) fn document(&self, value: &[u8]) -> Result<Option<Document>, Failure> {
        let resource = match (records::decode(&self.key, value)?, self.key.clone()) {
            (Record::Service(service), RecordKey::Service(name)) => Resource::Service(name, service),
            (Record::Policy(policy), RecordKey::Policy(name)) => Resource::Policy(name, policy),
            (Record::Workload(entry), RecordKey::Workload(name)) => Resource::Workload(name, entry),
            (Record::RoleBinding(binding), RecordKey::RoleBinding(name)) => {
                Resource::RoleBinding(name, binding)
            }
            (Record::DefaultAuthorization(default), _) => Resource::Authorization(default),
            _ => return Ok(None),
        };
        Ok(Some(Document::from(&resource)))
    }
}

/// The current value and the earlier ones, newest first.
pub(super) async fn changes(connection: &Connection, of: &NamedRecord) -> Result<Vec<Change>, Failure> {
    let request = GetHistoryRequest { kind: of.kind(), service: of.name.clone() };
    match connection.admin().get_history(request).await {
        Ok(answer) => Ok(answer.into_inner().changes),
        Err(status) if status.code() == Code::NotFound => {
            let more = match of.kind {
                Kind::Service | Kind::Workload | Kind::Role | Kind::Authorization => "",
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
