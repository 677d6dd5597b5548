//! Lists of shard maps.

use fairmesh_console::{failure::Failure, output::Listing, view_reader::View};
use fairmesh_model::{
    Replica, ReplicaState, ServiceName, ShardMap,
    spec::{Document, Resource, ShardMapSpec},
};
use serde_json::json;

/// One row per map.
pub(super) fn maps(view: &View) -> Listing {
    let mut listing = Listing::new(&["SERVICE", "VERSION", "INTERVAL", "SHARDS", "REPLICAS"]);
    for (name, one) in &view.services {
        let Some(map) = &one.shards else { continue };
        let replicas: usize = map.shards.iter().map(|shard| shard.replicas.len()).sum();
        let (version, shards) = (map.version, map.shards.len());
        listing.add(
            vec![
                name.to_string(),
                version.to_string(),
                map.interval.to_string(),
                shards.to_string(),
                replicas.to_string(),
            ],
            json!({
                "service": name.to_string(),
                "version": version,
                "interval": map.interval.to_string(),
                "shards": shards,
                "replicas": replicas,
            }),
        );
        listing.documents.push(Document::from(&Resource::ShardMap(name.clone(), map.clone())));
    }
    listing
}

/// One row per shard, of one service.
pub(super) fn one(view: &View, name: &ServiceName) -> Result<Listing, Failure> {
    let map = view.services.get(name).and_then(|one| one.shards.as_ref()).ok_or_else(|| no_map(name))?;
    Ok(one_map(name, map))
}

/// Error for a service without a shard map.
fn no_map(name: &ServiceName) -> Failure {
    Failure::failed_with(format!("{name} has no shard map"), "write one as 'kind: ShardMap' and apply it")
}

/// One row per shard. JSON has a single item: the whole map with its version.
pub(crate) fn one_map(name: &ServiceName, map: &ShardMap) -> Listing {
    let mut listing = Listing::new(&["SHARD", "KEYS", "REPLICAS"]);
    for (position, shard) in map.shards.iter().enumerate() {
        let mut replicas: Vec<String> = shard.replicas.iter().map(replica).collect();
        // By role, so that columns match in all rows.
        replicas.sort();
        listing.rows.push(vec![shard.id.to_string(), map.range(position).to_string(), replicas.join(", ")]);
    }
    let mut item = json!(ShardMapSpec::of(name, map));
    item["version"] = json!(map.version);
    listing.items.push(item);
    listing.documents.push(Document::from(&Resource::ShardMap(name.clone(), map.clone())));
    listing
}

fn replica(replica: &Replica) -> String {
    let Replica { instance, region, role, state } = replica;
    match state {
        ReplicaState::Serving => format!("{role} {instance} ({region})"),
        ReplicaState::Starting => format!("{role} {instance} ({region}, starting)"),
        ReplicaState::Stopping => format!("{role} {instance} ({region}, stopping)"),
    }
}
