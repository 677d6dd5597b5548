//! Converts resources to writes.

use bytes::Bytes;
use fairmesh_model::{Record, RecordKey, Replica, Shard, ShardMap, spec::Resource};
use fairmesh_wire::{records, v1::Op};

/// One record to write.
pub(super) struct Change {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) key: String,
    value: Bytes,
}

impl Change {
    fn new(kind: &'static str, name: String, key: &RecordKey, record: &Record) -> Self {
        Self { kind, name, key: key.to_string(), value: records::encode(record) }
    }
}

/// The records of resources: topology first, so that references to regions resolve, then services, policies and workloads. Shard maps
/// and endpoints are not written by the admin API.
pub(super) fn of(resources: &[Resource]) -> Vec<Change> {
    let mut changes: Vec<(u8, Change)> = Vec::new();
    for resource in resources {
        match resource {
            Resource::Topology(regions, round_trips) => {
                let regions = Record::Regions(regions.clone());
                changes.push((0, Change::new("Topology", "regions".into(), &RecordKey::Regions, &regions)));
                let round_trips = Record::RoundTrips(round_trips.clone());
                let change =
                    Change::new("Topology", "round trips".into(), &RecordKey::RoundTrips, &round_trips);
                changes.push((0, change));
            }
            Resource::ServiceAuthorization(name, rules) => {
                let key = RecordKey::Authorization(name.clone());
                let record = Record::Authorization(rules.clone());
                changes.push((2, Change::new("Authorization", name.to_string(), &key, &record)));
            }
            Resource::Authorization(default) => {
                let (key, record) = (RecordKey::DefaultAuthorization, Record::DefaultAuthorization(*default));
                changes.push((2, Change::new("Authorization", "authorization".into(), &key, &record)));
            }
            Resource::RoleBinding(name, binding) => {
                let key = RecordKey::RoleBinding(name.clone());
                let record = Record::RoleBinding(binding.clone());
                changes.push((2, Change::new("RoleBinding", name.to_string(), &key, &record)));
            }
            Resource::Hosts(hosts) => {
                let hosts = Record::Hosts(hosts.clone());
                changes.push((0, Change::new("Hosts", "hosts".into(), &RecordKey::Hosts, &hosts)));
            }
            Resource::Service(name, service) => {
                let key = RecordKey::Service(name.clone());
                changes.push((1, Change::new("Service", name.to_string(), &key, &service.clone().into())));
            }
            Resource::Policy(name, policy) => {
                let key = RecordKey::Policy(name.clone());
                changes.push((2, Change::new("Policy", name.to_string(), &key, &policy.clone().into())));
            }
            Resource::Workload(name, entry) => {
                let key = RecordKey::Workload(name.clone());
                let record = Record::Workload(entry.clone());
                changes.push((2, Change::new("Workload", name.to_string(), &key, &record)));
            }
            Resource::ShardMap(..) | Resource::Endpoints(..) => {}
        }
    }
    changes.sort_by_key(|(order, _)| *order);
    changes.into_iter().map(|(_, change)| change).collect()
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

/// Shards whose copies a map would place elsewhere, in words: `shard 3: primary from b to a`. The file may be older than moves.
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

/// The map with the copies of stored shards where they are; only new shards are placed as it says.
pub(super) fn with_stored_copies(stored: &ShardMap, wanted: &ShardMap) -> ShardMap {
    let stored_copies = |shard: &Shard| {
        let known = stored.shards.iter().find(|known| (known.id, known.start) == (shard.id, shard.start));
        Shard { replicas: known.unwrap_or(shard).replicas.clone(), ..shard.clone() }
    };
    ShardMap { shards: wanted.shards.iter().map(stored_copies).collect(), ..wanted.clone() }
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
    use fairmesh_model::spec::{Document, ShardMapSpec};

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
    fn moves_since_a_file_was_written_are_named_and_can_be_kept() {
        let file = map(r#"{"instance": "a", "region": "eu", "role": "primary"}"#);
        let stored = map(r#"{"instance": "b", "region": "eu", "role": "primary"}"#);
        assert_eq!(moved_back(&stored, &stored), Vec::<String>::new());
        assert_eq!(moved_back(&stored, &file), ["shard 0: from primary of b to primary of a"]);
        assert!(same_map(&with_stored_copies(&stored, &file), &stored));
    }

    #[test]
    fn maps_with_replicas_in_another_order_are_equal() {
        let a = r#"{"instance": "a", "region": "eu", "role": "primary"}"#;
        let b = r#"{"instance": "b", "region": "us", "role": "secondary"}"#;
        let both = map(&format!("{a}, {b}"));
        assert!(same_map(&both, &map(&format!("{b}, {a}"))));
        assert!(!same_map(&both, &map(a)));
        assert!(same_map(&both, &ShardMap { version: 7, ..both.clone() }));
    }
}
