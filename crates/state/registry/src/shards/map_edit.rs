//! Pure edits of a shard map.

use fairmesh_model::{Invalid, Replica, Shard, ShardId, ShardKey, ShardMap};

use crate::RegistryError;

/// Returns the index of a shard in the map.
pub(super) fn position(map: &ShardMap, shard: ShardId) -> Result<usize, RegistryError> {
    map.shards.iter().position(|candidate| candidate.id == shard).ok_or_else(|| {
        let problem = format!("there is no shard {shard}");
        RegistryError::not_found("shard", problem, "'fairmesh get shards' lists the shards of a service")
    })
}

pub(super) fn split(map: &mut ShardMap, shard: ShardId, at: Option<ShardKey>) -> Result<(), RegistryError> {
    let position = position(map, shard)?;
    let range = map.range(position);
    // Rounded up, so that the lower half is never empty.
    let width = range.last.0 - range.first.0;
    let at = at.unwrap_or(ShardKey(range.first.0 + width / 2 + width % 2));
    if at <= range.first || at > range.last {
        let problem = format!("{at} does not cut {range} in two");
        let hint = format!("write a key above {} and up to {}", range.first, range.last);
        return Err(Invalid::new("at", problem, hint).into());
    }
    let highest = map.shards.iter().map(|shard| shard.id.0).max().unwrap_or_default();
    let Some(id) = highest.checked_add(1).map(ShardId) else {
        let hint = "renumber the shards of the map";
        return Err(RegistryError::refused("shard", "no shard id is left".into(), hint));
    };
    let replicas = map.shards[position].replicas.clone();
    map.shards.insert(position + 1, Shard { id, start: at, replicas });
    Ok(())
}

/// Returns the next shard by key.
pub(super) fn next(map: &ShardMap, shard: ShardId) -> Result<&Shard, RegistryError> {
    map.shards.get(position(map, shard)? + 1).ok_or_else(|| {
        let problem = format!("{shard} is the last shard");
        RegistryError::refused("shard", problem, "name the shard before it")
    })
}

pub(super) fn merge(map: &mut ShardMap, shard: ShardId) -> Result<(), RegistryError> {
    let position = position(map, shard)?;
    let next = next(map, shard)?;
    if sorted(&map.shards[position]) != sorted(next) {
        let problem = format!("shards {shard} and {} are held by different copies", next.id);
        let hint = "move the copies of one of them first, so that the same instances hold both";
        return Err(RegistryError::refused("shard", problem, hint));
    }
    map.shards.remove(position + 1);
    Ok(())
}

fn sorted(shard: &Shard) -> Vec<&Replica> {
    let mut replicas: Vec<_> = shard.replicas.iter().collect();
    replicas.sort_by_key(|replica| (&replica.instance, &replica.role));
    replicas
}
