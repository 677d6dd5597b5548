//! What is to be moved.

use std::collections::BTreeMap;

use fairmesh_model::arith::hash_text;

use super::{
    super::{
        super::{failure::Failure, load::Scan},
        core::{Core, Routes},
        map::{self, MAX_NAMED, Wanted},
        open::refused,
    },
    SplitEvent, SplitWish,
};
use crate::{Place, StoreError};

/// What is moved from where to where, and how much that is.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) wanted: Wanted,
    pub(super) from: usize,
    to: usize,
    services: u64,
    weight: Weight,
}

/// How much there is of something.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    records: u64,
    bytes: u64,
}

impl Weight {
    fn add(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

impl Planned {
    pub(super) fn event(&self) -> SplitEvent {
        let part = |part| u32::try_from(part).unwrap_or(u32::MAX);
        SplitEvent::Planned {
            from: part(self.from),
            to: part(self.to),
            services: self.services,
            records: self.weight.records,
            bytes: self.weight.bytes,
        }
    }
}

impl Core {
    pub(super) async fn plan(&self, wish: &SplitWish, to: usize) -> Result<Planned, StoreError> {
        let (routes, place) = (self.routes(), self.place());
        let (wanted, from) = match wish.services.is_empty() {
            true => {
                let mut all = BTreeMap::new();
                for part in (0..routes.clusters.len()).filter(|part| *part != to) {
                    all.extend(self.weigh(&routes, part).await?);
                }
                half(&routes, &all, to).ok_or_else(|| {
                    refused(
                        &place,
                        "no range holds two services that could be parted; name services with --services",
                    )
                })?
            }
            false => (Wanted::Services(wish.services.clone()), source(&routes, &wish.services, to, &place)?),
        };
        let after = routes.map.moved(&wanted, to, None);
        let weights = self.weigh(&routes, from).await?;
        let moved = weights.into_iter().filter(|(service, _)| after.part_of(service) == to);
        let mut planned = Planned { wanted, from, to, services: 0, weight: Weight::default() };
        for (_, weight) in moved {
            planned.services += 1;
            planned.weight.add(weight);
        }
        Ok(planned)
    }

    /// How much each service has in a part.
    async fn weigh(&self, routes: &Routes, part: usize) -> Result<BTreeMap<String, Weight>, StoreError> {
        let cluster = &routes.clusters[part];
        let reading = |failure: Failure| failure.reading(&cluster.client.place);
        let (mut scan, mut weights) = (Scan::new(cluster.layout.records(), 0), BTreeMap::<_, Weight>::new());
        while let Some(kvs) = scan.next(&cluster.client).await.map_err(reading)? {
            for kv in kvs {
                let Some(key) = cluster.layout.record_at(&kv.key) else { continue };
                if let Some(service) = map::service(key).filter(|service| routes.map.part_of(service) == part)
                {
                    let bytes = (key.len() + kv.value.len()) as u64;
                    weights.entry(service).or_default().add(Weight { records: 1, bytes });
                }
            }
        }
        Ok(weights)
    }
}

/// The part that named services are in.
fn source(routes: &Routes, services: &[String], to: usize, place: &Place) -> Result<usize, StoreError> {
    if services.len() > MAX_NAMED {
        return Err(refused(
            place,
            &format!("name at most {MAX_NAMED} services, or none for half of a range"),
        ));
    }
    let mut parts: Vec<_> = services.iter().map(|service| routes.map.part_of(service)).collect();
    parts.sort_unstable();
    parts.dedup();
    match parts[..] {
        [part] if part == to => Err(refused(place, "these services are there already")),
        [part] => Ok(part),
        _ => Err(refused(place, "these services are in several parts; move those of one part at a time")),
    }
}

/// The upper half, by bytes, of the range that has most of them.
fn half(routes: &Routes, weights: &BTreeMap<String, Weight>, to: usize) -> Option<(Wanted, usize)> {
    let by_hash = weights.iter().filter(|(service, _)| !routes.map.is_named(service));
    let mut hashes: Vec<_> = by_hash.map(|(service, weight)| (hash_text(service), weight.bytes)).collect();
    hashes.sort_unstable();
    let ranges = routes.map.ranges().filter(|(.., part)| *part != to);
    let within = ranges.map(|(from, until, part)| {
        let start = hashes.partition_point(|(hash, _)| *hash < from);
        let end = until.map_or(hashes.len(), |until| hashes.partition_point(|(hash, _)| *hash < until));
        (until, part, &hashes[start..end])
    });
    let bytes = |held: &[(u64, u64)]| held.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let (until, part, held) =
        within.filter(|(.., held)| held.len() > 1).max_by_key(|(.., held)| bytes(held))?;
    let (total, mut below) = (bytes(held), 0);
    let middle = held.iter().position(|(_, bytes)| {
        below += bytes;
        2 * below >= total
    });
    // Something stays, and something goes.
    let first = (middle? + 1).min(held.len() - 1);
    Some((Wanted::Range(held[first].0, until), part))
}
