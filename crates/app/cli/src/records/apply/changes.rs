//! Converts resources to writes.

use bytes::Bytes;
use fairmesh_model::{DefaultsScope, RecordKey, RecordKind, Replica, Shard, ShardMap, spec::Resource};
use fairmesh_wire::{record_encoding, v1::Op};

/// One record to write.
pub(super) struct Change {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) key: String,
    value: Bytes,
}

/// The records of resources: topology first, so that references to regions resolve, then services, policies and workloads. Shard maps
/// and endpoints are not written by the admin API.
pub(super) fn of(resources: &[Resource]) -> Vec<Change> {
    let mut changes: Vec<(u8, Change)> = Vec::new();
    for resource in resources {
        let (kind, name) = resource.kind_and_name();
        for (key, record) in resource.records() {
            let name = unnamed(&key).map_or_else(|| name.clone(), str::to_owned);
            let change = Change { kind, name, key: key.to_string(), value: record_encoding::encode(&record) };
            changes.push((order(key.kind()), change));
        }
    }
    changes.sort_by_key(|(order, _)| *order);
    changes.into_iter().map(|(_, change)| change).collect()
}

/// Name of a record that exists once in the mesh.
fn unnamed(key: &RecordKey) -> Option<&'static str> {
    match key {
        RecordKey::RoundTrips => Some("round trips"),
        RecordKey::PolicyDefaults(DefaultsScope::Mesh) => Some("of the mesh"),
        key if key.kind().is_single() && key.service().is_none() => key.kind().history_name(),
        _ => None,
    }
}

fn order(kind: RecordKind) -> u8 {
    match kind {
        RecordKind::Regions | RecordKind::RoundTrips | RecordKind::Hosts => 0,
        RecordKind::Service => 1,
        _ => 2,
    }
}

/// Unconditional write operations: history keeps the replaced values.
pub(super) fn ops(changes: &[Change]) -> Vec<Op> {
    let op =
        |change: &Change| Op { key: change.key.clone(), value: Some(change.value.clone()), condition: None };
    changes.iter().map(op).collect()
}

/// Whether two maps are equal for every key; the order of replicas has no meaning.
pub(crate) fn same_map(a: &ShardMap, b: &ShardMap) -> bool {
    let same_shard = |(a, b): (&Shard, &Shard)| {
        a.id == b.id && a.start == b.start && sorted(&a.replicas) == sorted(&b.replicas)
    };
    a.interval == b.interval
        && a.shards.len() == b.shards.len()
        && a.shards.iter().zip(&b.shards).all(same_shard)
}

/// Describes shards whose copies the map would place elsewhere, as `shard 3: primary from b to a`. The file may be
/// older than moves.
pub(super) fn moved_back(stored: &ShardMap, wanted: &ShardMap) -> Vec<String> {
    let words = |(before, after): (&Shard, &Shard)| {
        let names = |replicas: &[Replica]| {
            let names = sorted(replicas).into_iter().map(|one| format!("{} of {}", one.role, one.instance));
            names.collect::<Vec<_>>().join(", ")
        };
        format!("shard {}: from {} to {}", after.id, names(&before.replicas), names(&after.replicas))
    };
    let both = same_shards(stored, wanted);
    let moved = both.filter(|(before, after)| sorted(&before.replicas) != sorted(&after.replicas));
    moved.map(words).collect()
}

/// The map with the copies of stored shards where they currently are; only new shards are placed as in the file.
pub(super) fn with_stored_copies(stored: &ShardMap, wanted: &ShardMap) -> ShardMap {
    let stored_copies = |shard: &Shard| {
        let known = stored.shards.iter().find(|known| (known.id, known.start) == (shard.id, shard.start));
        Shard { replicas: known.unwrap_or(shard).replicas.clone(), ..shard.clone() }
    };
    ShardMap { shards: wanted.shards.iter().map(stored_copies).collect(), ..wanted.clone() }
}

/// The stored shards that a map lacks, as `shard 3 from key 250`. The file may be older than splits.
pub(super) fn missing_shards(stored: &ShardMap, wanted: &ShardMap) -> Vec<String> {
    let is_missing = |known: &&Shard| {
        !wanted.shards.iter().any(|shard| (shard.id, shard.start) == (known.id, known.start))
    };
    let missing = stored.shards.iter().filter(is_missing);
    missing.map(|shard| format!("shard {} from key {}", shard.id, shard.start)).collect()
}

fn same_shards<'a>(
    stored: &'a ShardMap,
    wanted: &'a ShardMap,
) -> impl Iterator<Item = (&'a Shard, &'a Shard)> {
    let pair = |after: &'a Shard| {
        let before = stored.shards.iter().find(|known| (known.id, known.start) == (after.id, after.start))?;
        Some((before, after))
    };
    wanted.shards.iter().filter_map(pair)
}

fn sorted(replicas: &[Replica]) -> Vec<&Replica> {
    let mut replicas: Vec<&Replica> = replicas.iter().collect();
    replicas.sort_by(|a, b| (&a.role, &a.instance, &a.region).cmp(&(&b.role, &b.instance, &b.region)));
    replicas
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{
        ShardId, ShardKey,
        spec::{Document, ShardMapSpec},
    };

    use super::*;

    fn map(replicas: &str) -> ShardMap {
        let text = format!(
            r#"{{"kind": "ShardMap", "service": "shop/cart", "shards": [{{"id": 0, "start": 0, "replicas": [{replicas}]}}]}}"#
        );
        let Document::ShardMap(spec) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        let _: &ShardMapSpec = &spec;
        spec.validate().unwrap().1
    }

    #[test]
    fn apply_names_shard_moves_that_file_would_undo() {
        let file = map(r#"{"instance": "a", "region": "eu", "role": "primary"}"#);
        let stored = map(r#"{"instance": "b", "region": "eu", "role": "primary"}"#);
        assert_eq!(moved_back(&stored, &stored), Vec::<String>::new());
        assert_eq!(moved_back(&stored, &file), ["shard 0: from primary of b to primary of a"]);
        assert!(same_map(&with_stored_copies(&stored, &file), &stored));
    }

    #[test]
    fn apply_warns_of_stored_shards_missing_from_file() {
        let file = map(r#"{"instance": "a", "region": "eu", "role": "primary"}"#);
        let mut stored = file.clone();
        stored.shards.push(Shard { id: ShardId(3), start: ShardKey(250), ..file.shards[0].clone() });
        assert_eq!(missing_shards(&stored, &file), ["shard 3 from key 250"]);
        assert_eq!(missing_shards(&file, &stored), Vec::<String>::new());
    }

    #[test]
    fn shard_maps_with_reordered_replicas_are_equal() {
        let a = r#"{"instance": "a", "region": "eu", "role": "primary"}"#;
        let b = r#"{"instance": "b", "region": "us", "role": "secondary"}"#;
        let both = map(&format!("{a}, {b}"));
        assert!(same_map(&both, &map(&format!("{b}, {a}"))));
        assert!(!same_map(&both, &map(a)));
        assert!(same_map(&both, &ShardMap { version: 7, ..both.clone() }));
    }
}
