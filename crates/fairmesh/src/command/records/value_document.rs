//! Values of records, for display.

use fairmesh_model::{
    Record, RecordKey,
    spec::{Document, Resource},
};
use fairmesh_wire::records;
use serde_json::{Value, json};

/// The value at a key as the document that `apply` reads, or in words; `None` if it cannot be read.
pub(crate) fn value_document(key: &str, value: &[u8]) -> Option<Value> {
    let key = RecordKey::parse(key).ok()?;
    let record = records::decode(&key, value).ok()?;
    let resource = match (record, key) {
        (Record::Service(service), RecordKey::Service(name)) => Resource::Service(name, service),
        (Record::Policy(policy), RecordKey::Policy(name)) => Resource::Policy(name, policy),
        (Record::Workload(entry), RecordKey::Workload(name)) => Resource::Workload(name, entry),
        (Record::RoleBinding(binding), RecordKey::RoleBinding(name)) => Resource::RoleBinding(name, binding),
        (Record::DefaultAuthorization(default), _) => Resource::Authorization(default),
        (Record::Hosts(hosts), _) => Resource::Hosts(hosts),
        (record, _) => return Some(json!(format!("{record:?}"))),
    };
    Some(json!(Document::from(&resource)))
}
