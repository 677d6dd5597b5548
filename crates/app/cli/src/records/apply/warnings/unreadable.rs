//! Warnings about stored records that cannot be read. They stop no write: a write is how such a record is repaired.

use std::collections::BTreeSet;

use fairmesh_console::view_reader::{View, warn_of_unreadable};
use fairmesh_model::{Policy, RecordKey, ServiceName, spec::Resource};

/// Warns of the unreadable records, and says which of them the resources replace.
pub(super) fn warn(known: &View, resources: &[&Resource]) {
    let written: BTreeSet<RecordKey> =
        resources.iter().flat_map(|one| one.records()).map(|(key, _)| key).collect();
    let is_written = |key: &RecordKey| match key {
        // The records of a map are replaced together.
        RecordKey::ShardManifest(of, _) | RecordKey::ShardChunk(of, ..) => {
            resources.iter().any(|one| matches!(one, Resource::ShardMap(name, _) if name == of))
        }
        key => written.contains(key),
    };
    warn_of_unreadable(known, |key| is_written(key).then(|| replaced(known, key, resources)));
}

fn replaced(known: &View, key: &RecordKey, resources: &[&Resource]) -> String {
    let policy = resources.iter().find_map(|one| match one {
        Resource::Policy(name, policy) if *key == RecordKey::Policy(name.clone()) => Some((name, policy)),
        _ => None,
    });
    let replaces = "the written record replaces it, and warnings of changes are incomplete";
    match policy {
        Some((name, policy)) if loses_rules(known, name, policy, resources) => format!(
            "{replaces}; its rules are lost, so that no call of {name} is allowed until its rules are written again ('kind: \
             Authorization' with 'service: {name}')"
        ),
        _ => replaces.to_owned(),
    }
}

/// Whether the rules of an unreadable policy were only there: control planes replace such rules by rules that allow no
/// caller.
fn loses_rules(known: &View, name: &ServiceName, policy: &Policy, resources: &[&Resource]) -> bool {
    let is_kept = known.services.get(name).is_some_and(|one| one.authorization.is_some());
    let is_written =
        resources.iter().any(|one| matches!(one, Resource::ServiceAuthorization(of, _) if of == name));
    policy.authorization.is_none() && !is_kept && !is_written
}
