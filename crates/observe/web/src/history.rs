//! The values that a policy had.

use fairmesh_model::{
    Record, RecordKey, ServiceName,
    spec::{Document, Resource},
};
use fairmesh_views::instant;
use fairmesh_wire::{records, v1};
use serde_json::{Value, json};

/// The values of a policy, newest first, as the documents that `fairmesh apply` reads.
pub(crate) fn policies(service: &ServiceName, changes: &[v1::Change]) -> Value {
    let document = |change: &v1::Change| {
        let value = change.value.as_ref()?;
        match records::decode(&RecordKey::Policy(service.clone()), value) {
            Ok(Record::Policy(policy)) => Some(Document::from(&Resource::Policy(service.clone(), policy))),
            // A value of a newer release.
            _ => None,
        }
    };
    let shown = changes.iter().enumerate().map(|(i, change)| {
        // Who replaced an older value wrote the one that replaced it.
        let written = changes.get(i + 1);
        json!({
            "revision": change.revision,
            "writtenAt": written.map(|older| instant(older.replaced_at_ms)),
            "writtenBy": written.map(|older| &older.replaced_by),
            "message": written.map(|older| &older.replaced_message),
            "document": document(change),
        })
    });
    json!({ "versions": shown.collect::<Vec<_>>() })
}
