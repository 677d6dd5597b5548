//! Shards of which all copies are in one region: their calls cannot leave it.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{Region, ReplicaState, Role, Shard, ShardId, ShardMap};

/// Shards that messages name.
const MAX_NAMED: usize = 5;

/// The shards of a service that have no copy in another region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoneShards {
    /// Number of all shards.
    total: usize,
    regions: BTreeMap<Region, LoneInRegion>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct LoneInRegion {
    count: usize,
    /// The first of them.
    named: Vec<ShardId>,
}

impl LoneShards {
    /// Those of a map. A shard counts if it has no other copy of one of its roles: calls may ask for this one.
    pub fn of(map: &ShardMap) -> Self {
        let mut lone = Self { total: map.shards.len(), regions: BTreeMap::new() };
        for shard in &map.shards {
            for region in lone_regions(shard) {
                let found = lone.regions.entry(region.clone()).or_default();
                found.count += 1;
                if found.named.len() < MAX_NAMED {
                    found.named.push(shard.id);
                }
            }
        }
        lone
    }

    /// The share of all shards that are only in this region.
    pub fn share(&self, region: &Region) -> f64 {
        let count = self.regions.get(region).map_or(0, |lone| lone.count);
        if self.total == 0 { 0.0 } else { count as f64 / self.total as f64 }
    }

    /// The shards that are only in this region, in words; `None` without any.
    pub fn text(&self, region: &Region) -> Option<String> {
        let lone = self.regions.get(region)?;
        let names: Vec<String> = lone.named.iter().map(ToString::to_string).collect();
        let more = if lone.count > lone.named.len() { ", …" } else { "" };
        let (count, total) = (lone.count, self.total);
        Some(format!("{count} of {total} shards have no copy in another region: {}{more}", names.join(", ")))
    }
}

fn lone_regions(shard: &Shard) -> BTreeSet<&Region> {
    let mut by_role = BTreeMap::<&Role, BTreeSet<&Region>>::new();
    for replica in shard.replicas.iter().filter(|replica| replica.state == ReplicaState::Serving) {
        by_role.entry(&replica.role).or_default().insert(&replica.region);
    }
    by_role.into_values().filter(|regions| regions.len() == 1).flatten().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use fairmesh_model::{InstanceId, KeyRange, Replica, ShardKey};

    use super::*;

    /// A map whose shards have copies in these regions.
    pub(crate) fn map(copies: &[&[(&str, &str)]]) -> ShardMap {
        let replica = |(role, region): &(&str, &str)| Replica {
            instance: InstanceId::new(format!("{region}-{role}")).unwrap(),
            region: Region::new(*region).unwrap(),
            role: Role::new(*role).unwrap(),
            state: ReplicaState::Serving,
        };
        let shard = |(n, copies): (usize, &&[(&str, &str)])| Shard {
            id: ShardId(n as u32),
            start: ShardKey(n as u128),
            replicas: copies.iter().map(replica).collect(),
        };
        let interval = KeyRange { first: ShardKey(0), last: ShardKey(1_000) };
        ShardMap { version: 1, interval, shards: copies.iter().enumerate().map(shard).collect() }
    }

    #[test]
    fn shard_is_lone_if_one_of_its_roles_exists_in_one_region_only() {
        let map = map(&[
            &[("primary", "eu"), ("primary", "us")],
            &[("primary", "eu")],
            &[("primary", "eu"), ("secondary", "us")],
            &[],
        ]);
        let lone = LoneShards::of(&map);
        let (eu, us, ap) =
            (Region::new("eu").unwrap(), Region::new("us").unwrap(), Region::new("ap").unwrap());
        assert_eq!((lone.share(&eu), lone.share(&us), lone.share(&ap)), (0.5, 0.25, 0.0));
        let text = lone.text(&eu).unwrap();
        assert_eq!(text, "2 of 4 shards have no copy in another region: 1, 2");
        assert_eq!(lone.text(&ap), None);
    }
}
