//! The current and earlier values of a policy.

use fairmesh_model::{
    Record, RecordKey, ServiceName,
    spec::{Document, Resource},
};
use fairmesh_views::instant;
use fairmesh_wire::{record_encoding, v1};
use serde_json::{Value, json};

/// Returns the values of a policy, newest first, as documents in the format of `fairmesh apply`.
pub(crate) fn policies(service: &ServiceName, changes: &[v1::Change]) -> Value {
    let document = |change: &v1::Change| {
        let value = change.value.as_ref()?;
        match record_encoding::decode(&RecordKey::Policy(service.clone()), value) {
            Ok(Record::Policy(policy)) => Some(Document::from(&Resource::Policy(service.clone(), policy))),
            // The value was written by a newer release.
            _ => None,
        }
    };
    let shown = changes.iter().enumerate().map(|(i, change)| {
        // A history entry names the author who replaced its value; this author wrote the next newer value.
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
