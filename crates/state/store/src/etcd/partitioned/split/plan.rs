//! Decides which services a split moves.

use std::collections::BTreeMap;

use fairmesh_model::arith::hash_text;

use super::{
    super::{
        super::{call_error::CallError, load::RangeScan},
        open::refused,
        partition_map::{self, MAX_NAMED, MoveScope},
        state::{PartitionedState, Partitions},
    },
    SplitEvent, SplitRequest,
};
use crate::{StoreError, StoreLocation};

/// Scope, source, target and size of a move.
#[derive(Debug)]
pub(super) struct MovePlan {
    pub(super) scope: MoveScope,
    pub(super) from: usize,
    to: usize,
    services: u64,
    size: RecordSize,
}

/// Number of records and their size in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct RecordSize {
    records: u64,
    bytes: u64,
}

impl RecordSize {
    fn add(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

impl MovePlan {
    pub(super) fn event(&self) -> SplitEvent {
        let part = |part| u32::try_from(part).unwrap_or(u32::MAX);
        SplitEvent::Planned {
            from: part(self.from),
            to: part(self.to),
            services: self.services,
            records: self.size.records,
            bytes: self.size.bytes,
        }
    }
}

impl PartitionedState {
    pub(super) async fn plan(&self, request: &SplitRequest, to: usize) -> Result<MovePlan, StoreError> {
        let (partitions, location) = (self.partitions(), self.location());
        let (scope, from) = match request.services.is_empty() {
            true => {
                let mut all = BTreeMap::new();
                for part in (0..partitions.clusters.len()).filter(|part| *part != to) {
                    all.extend(self.measure_services(&partitions, part).await?);
                }
                upper_half(&partitions, &all, to).ok_or_else(|| {
                    refused(&location, "no range has two services to separate; name services with --services")
                })?
            }
            false => (
                MoveScope::Services(request.services.clone()),
                source_partition(&partitions, &request.services, to, &location)?,
            ),
        };
        let after = partitions.map.with_move(&scope, to, None);
        let sizes = self.measure_services(&partitions, from).await?;
        let moved = sizes.into_iter().filter(|(service, _)| after.partition_of_service(service) == to);
        let mut planned = MovePlan { scope, from, to, services: 0, size: RecordSize::default() };
        for (_, size) in moved {
            planned.services += 1;
            planned.size.add(size);
        }
        Ok(planned)
    }

    /// Returns the size of each service in a partition.
    async fn measure_services(
        &self,
        partitions: &Partitions,
        part: usize,
    ) -> Result<BTreeMap<String, RecordSize>, StoreError> {
        let cluster = &partitions.clusters[part];
        let store_error = |failure: CallError| failure.into_store_error(&cluster.client.location);
        let (mut scan, mut sizes) =
            (RangeScan::new(cluster.layout.record_range(), 0), BTreeMap::<_, RecordSize>::new());
        while let Some(kvs) = scan.next(&cluster.client).await.map_err(store_error)? {
            for kv in kvs {
                let Some(key) = cluster.layout.parse_record_key(&kv.key) else { continue };
                if let Some(service) = partition_map::service(key)
                    .filter(|service| partitions.map.partition_of_service(service) == part)
                {
                    let bytes = (key.len() + kv.value.len()) as u64;
                    sizes.entry(service).or_default().add(RecordSize { records: 1, bytes });
                }
            }
        }
        Ok(sizes)
    }
}

/// Returns the partition of the named services.
fn source_partition(
    partitions: &Partitions,
    services: &[String],
    to: usize,
    location: &StoreLocation,
) -> Result<usize, StoreError> {
    if services.len() > MAX_NAMED {
        return Err(refused(
            location,
            &format!("name at most {MAX_NAMED} services, or none for half of a range"),
        ));
    }
    let mut parts: Vec<_> =
        services.iter().map(|service| partitions.map.partition_of_service(service)).collect();
    parts.sort_unstable();
    parts.dedup();
    match parts[..] {
        [part] if part == to => Err(refused(location, "these services are there already")),
        [part] => Ok(part),
        _ => Err(refused(
            location,
            "these services are in several partitions; move those of one partition at a time",
        )),
    }
}

/// Returns the upper half, by bytes, of the hash range with the most bytes.
fn upper_half(
    partitions: &Partitions,
    sizes: &BTreeMap<String, RecordSize>,
    to: usize,
) -> Option<(MoveScope, usize)> {
    let by_hash = sizes.iter().filter(|(service, _)| !partitions.map.is_named(service));
    let mut hashes: Vec<_> = by_hash.map(|(service, size)| (hash_text(service), size.bytes)).collect();
    hashes.sort_unstable();
    let ranges = partitions.map.ranges().filter(|(.., part)| *part != to);
    let within = ranges.map(|(from, until, part)| {
        let start = hashes.partition_point(|(hash, _)| *hash < from);
        let end = until.map_or(hashes.len(), |until| hashes.partition_point(|(hash, _)| *hash < until));
        (until, part, &hashes[start..end])
    });
    let bytes = |contents: &[(u64, u64)]| contents.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let (until, part, contents) =
        within.filter(|(.., contents)| contents.len() > 1).max_by_key(|(.., contents)| bytes(contents))?;
    let (total, mut below) = (bytes(contents), 0);
    let middle = contents.iter().position(|(_, bytes)| {
        below += bytes;
        2 * below >= total
    });
    // Each half must have at least one service.
    let first = (middle? + 1).min(contents.len() - 1);
    Some((MoveScope::Range(contents[first].0, until), part))
}
