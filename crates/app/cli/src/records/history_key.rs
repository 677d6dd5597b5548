//! Configuration with a history, and its versions.

use bytes::Bytes;
use clap::Args;
use fairmesh_console::failure::Failure;
use fairmesh_model::{
    Record, RecordKey, RecordKind, Regions, RoundTrips, Service, ServiceName,
    spec::{Document, Resource},
};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{Change, Condition, GetHistoryRequest, Op, condition},
};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    kind_names::Kind,
    record_name::{Naming, RecordName, key_of},
    value_document::resource,
};

/// Names configuration that has a history.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryKey {
    /// The kind of record.
    #[arg(value_enum)]
    pub(super) kind: Kind,
    /// The service, as tenant/service, the tenant of policy defaults, or the role binding; topology and hosts have no name,
    /// and authorization has none where it applies to services without rules.
    pub(super) name: Option<RecordName>,
}

/// One version of the configuration. A topology consists of two records.
#[derive(Clone, Debug)]
pub(super) struct Version {
    /// The revision of the write. Imported earlier versions have a number in its place; 0 means a deletion that is in
    /// force.
    pub(super) revision: u64,
    /// Revision of the stored record, for conditional writes. Only for the current version of a single record.
    pub(super) stored_revision: Option<u64>,
    /// Values by record; `None` if the record did not exist.
    pub(super) values: Vec<Option<Bytes>>,
    /// Author and time, if known.
    pub(super) written: Option<Written>,
}

/// Author and time of a write.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) at_ms: u64,
    pub(super) by: String,
    pub(super) message: String,
}

impl HistoryKey {
    /// Checks that a name is given exactly for kinds that need one.
    pub(super) fn validate(&self) -> Result<(), Failure> {
        if !self.records().is_empty() {
            return Ok(());
        }
        let (kind, list) = (self.kind.name(), self.kind.list());
        let named: Vec<_> = self.kind.records().map(Naming::of).collect();
        let (message, hint) = match (named.contains(&Naming::Service), named.contains(&Naming::Unnamed)) {
            (true, true) => (
                format!("the {kind} of a service is named by the service"),
                "write it as tenant/service after the kind, or nothing for services without rules".to_owned(),
            ),
            (true, false) => (
                format!("the service of the {kind} is missing"),
                "write it as tenant/service after the kind".to_owned(),
            ),
            (false, true) => (format!("{kind} belongs to no service"), "leave the service out".to_owned()),
            (false, false) if named.contains(&Naming::Tenant) => (
                format!("the {kind} are of a tenant or of the mesh"),
                "write the tenant after the kind, or nothing for the mesh".to_owned(),
            ),
            (false, false) => (
                format!("the name of the {kind} is missing"),
                format!("write it after the kind (see 'fairmesh get {list}')"),
            ),
        };
        Err(Failure::refused(message, hint))
    }

    /// The service of the record, if it belongs to one.
    pub(super) fn service(&self) -> Option<&ServiceName> {
        match &self.name {
            Some(RecordName::Service(service)) => Some(service),
            _ => None,
        }
    }

    /// The name of the record, if it has one.
    pub(super) fn name(&self) -> Option<String> {
        self.name.as_ref().map(ToString::to_string)
    }

    /// Text such as `the policy of shop/cart`.
    pub(super) fn title(&self) -> String {
        let kind = self.kind.name();
        match &self.name {
            Some(RecordName::Service(service)) => format!("the {kind} of {service}"),
            Some(RecordName::Label(name)) => format!("the {kind} {name}"),
            None => format!("the {kind} of the mesh"),
        }
    }

    /// The kind and the name as arguments.
    pub(super) fn arguments(&self) -> String {
        match &self.name {
            Some(name) => format!("{} {name}", self.kind.name()),
            None => self.kind.name().to_owned(),
        }
    }

    /// The keys of its records.
    pub(super) fn records(&self) -> Vec<RecordKey> {
        self.kind.records().filter_map(|kind| key_of(kind, self.name.as_ref())).collect()
    }

    /// The declaration in a version; `None` if the record is of another kind.
    pub(super) fn declaration(&self, version: &Version) -> Result<Option<Service>, Failure> {
        Ok(match self.decode(version)?.into_iter().next() {
            Some(Some(Record::Service(service))) => Some(service),
            _ => None,
        })
    }

    /// The document as `apply` reads it; `None` if the record did not exist.
    pub(super) fn document(&self, version: &Version) -> Result<Option<Document>, Failure> {
        let mut records = self.decode(version)?;
        if self.kind.includes(RecordKind::Regions) {
            return Ok(topology(records));
        }
        let (record, key) = (records.pop().flatten(), self.records().pop());
        let resource = record.zip(key).and_then(|(record, key)| resource(&key, record));
        Ok(resource.as_ref().map(Document::from))
    }

    fn decode(&self, version: &Version) -> Result<Vec<Option<Record>>, Failure> {
        let decode = |(key, value): (RecordKey, &Option<Bytes>)| {
            Ok(value.as_ref().map(|value| record_encoding::decode(&key, value)).transpose()?)
        };
        self.records().into_iter().zip(&version.values).map(decode).collect()
    }

    /// The writes that restore a version.
    pub(super) fn ops(&self, version: &Version, condition: Option<u64>) -> Vec<Op> {
        let condition =
            condition.map(|revision| Condition { kind: Some(condition::Kind::Revision(revision)) });
        let op = |(key, value): (RecordKey, &Option<Bytes>)| Op {
            key: key.to_string(),
            value: value.clone(),
            condition,
        };
        self.records().into_iter().zip(&version.values).map(op).collect()
    }
}

fn topology(records: Vec<Option<Record>>) -> Option<Document> {
    let (mut regions, mut round_trips) = (None, None);
    for record in records.into_iter().flatten() {
        match record {
            Record::Regions(record) => regions = Some(record),
            Record::RoundTrips(record) => round_trips = Some(record),
            _ => {}
        }
    }
    if regions.is_none() && round_trips.is_none() {
        return None;
    }
    let (regions, declared): (Regions, _) = (regions.unwrap_or_default(), round_trips.unwrap_or_default());
    let mut all = RoundTrips::default();
    all.set_declared(declared);
    Some(Document::from(&Resource::Topology(regions, all)))
}

/// The current version and earlier ones, newest first.
pub(super) async fn versions(connection: &Connection, of: &HistoryKey) -> Result<Vec<Version>, Failure> {
    of.validate()?;
    let mut histories = Vec::new();
    for key in of.records() {
        histories.push(changes(connection, of, key.kind()).await?);
    }
    if histories.iter().all(Vec::is_empty) {
        let hint = match of.kind.includes(RecordKind::Policy) {
            true => "; a service without one has the defaults",
            false => "",
        };
        return Err(Failure::failed_with(
            format!("{} never existed", of.title()),
            format!("check the name with 'fairmesh get {}'{hint}", of.kind.list()),
        ));
    }
    Ok(merge(&histories))
}

async fn changes(connection: &Connection, of: &HistoryKey, kind: RecordKind) -> Result<Vec<Change>, Failure> {
    let (kind, service) = (kind.history_name().unwrap_or_default(), of.name().unwrap_or_default());
    let request = GetHistoryRequest { kind: kind.to_owned(), service };
    match connection.admin().get_history(request).await {
        Ok(answer) => Ok(answer.into_inner().changes),
        Err(status) if status.code() == Code::NotFound => Ok(Vec::new()),
        Err(status) => Err(status.into()),
    }
}

/// Merges the histories of all records into one list, with an entry for each revision that wrote any of them.
fn merge(histories: &[Vec<Change>]) -> Vec<Version> {
    // A deletion in force has no revision yet, and is the newest.
    let order = |change: &Change| {
        if change.revision == 0 && change.replaced_at_ms == 0 { u64::MAX } else { change.revision }
    };
    let mut revisions: Vec<u64> = histories.iter().flatten().map(order).collect();
    revisions.sort_unstable();
    revisions.dedup();
    let version = |at: &u64| {
        let mut version = Version { revision: *at, stored_revision: None, values: Vec::new(), written: None };
        for history in histories {
            // Newest first. Before its first known write, a record has its oldest known value.
            let current = history
                .iter()
                .position(|change| order(change) <= *at)
                .unwrap_or(history.len().saturating_sub(1));
            version.values.push(history.get(current).and_then(|change| change.value.clone()));
            if history.get(current).is_some_and(|change| order(change) == *at) {
                version.written = history.get(current + 1).map(written).or(version.written);
            }
        }
        if *at == u64::MAX {
            version.revision = 0;
        }
        version
    };
    let mut versions: Vec<_> = revisions.iter().rev().map(version).collect();
    if let ([history], Some(current)) = (histories, versions.first_mut()) {
        current.stored_revision =
            history.first().map(|change| change.stored_revision).filter(|revision| *revision > 0);
    }
    versions
}

/// Author and time of the write that replaced a value.
fn written(replaced: &Change) -> Written {
    Written {
        at_ms: replaced.replaced_at_ms,
        by: replaced.replaced_by.clone(),
        message: replaced.replaced_message.clone(),
    }
}

/// A document in one line, without its kind and name.
pub(super) fn one_line(document: &Document) -> String {
    let text = contents(document).to_string();
    let mut cut: String = text.chars().take(80).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

/// A document without its kind and name.
pub(super) fn contents(document: &Document) -> Value {
    super::contents(json!(document))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: u64, value: Option<&'static [u8]>, replaced_at_ms: u64) -> Change {
        let value = value.map(Bytes::from_static);
        Change {
            revision,
            value,
            replaced_at_ms,
            replaced_by: format!("user {replaced_at_ms}"),
            ..Change::default()
        }
    }

    #[test]
    fn histories_of_topology_records_are_merged_by_time() {
        let regions = vec![change(7, Some(b"r7"), 0), change(3, Some(b"r3"), 70), change(1, None, 30)];
        let round_trips = vec![change(5, Some(b"t5"), 0), change(2, None, 50)];
        let merged = merge(&[regions, round_trips]);
        let shown: Vec<_> = merged
            .iter()
            .map(|version| {
                let values: Vec<_> = version.values.iter().map(|value| value.as_deref()).collect();
                (version.revision, values, version.written.as_ref().map(|written| written.at_ms))
            })
            .collect();
        assert_eq!(
            shown,
            [
                (7, vec![Some(&b"r7"[..]), Some(b"t5")], Some(70)),
                (5, vec![Some(b"r3"), Some(b"t5")], Some(50)),
                (3, vec![Some(b"r3"), None], Some(30)),
                (2, vec![None, None], None),
                (1, vec![None, None], None),
            ]
        );
    }

    #[test]
    fn history_begins_with_deletion_when_record_is_deleted() {
        let merged = merge(&[vec![change(0, None, 0), change(4, Some(b"v"), 90)]]);
        assert_eq!(merged.iter().map(|version| version.revision).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(merged[0].written.as_ref().unwrap().by, "user 90");
    }
}
