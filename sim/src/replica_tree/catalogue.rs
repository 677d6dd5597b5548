//! Content of the routing information base: services by size, their records, and the services that programs call.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{
    ChunkHash, InstanceId, Invalid, Prefix, RecordKey, Region, ServiceName, ShardPart,
    arith::{Generator, mix64},
};
use fairmesh_rib::Entry;

use super::scenario::{Scenario, Size};
use crate::sampling::{exp, ln, unit};

/// The revision of the initial records.
pub(super) const INITIAL_REVISION: u64 = 1;
/// Bytes of the service record, and of the policy record.
const SMALL_VALUE_BYTES: usize = 64;
/// Bytes that values are sliced from.
const VALUE_SOURCE_BYTES: usize = 1 << 20;
/// Bytes of a manifest per chunk, and of its fixed part.
const MANIFEST_BYTES: (usize, usize) = (16, 48);

/// One service.
#[derive(Clone, Debug)]
pub(super) struct ServiceInfo {
    pub(super) name: ServiceName,
    pub(super) servers: u32,
    /// Chunks of its shard map in each region; 0 if it is not sharded.
    pub(super) chunks: u32,
}

/// All services, the largest first.
#[derive(Debug)]
pub(super) struct Catalogue {
    pub(super) services: Vec<ServiceInfo>,
    regions: Vec<Region>,
    /// Number of servers of this and all earlier services.
    servers: Vec<u64>,
    /// Number of chunks in all regions, of this and all earlier services.
    chunks: Vec<u64>,
    /// Cumulative popularity of this and all earlier services, not normalised.
    popularity: Vec<f64>,
    value_source: Bytes,
    endpoint_bytes: usize,
    chunk_bytes: usize,
}

impl Catalogue {
    pub(super) fn new(scenario: &Scenario) -> Result<Self, Invalid> {
        let spec = &scenario.services;
        let regions: Vec<Region> =
            scenario.regions.iter().map(|region| region.name.parse()).collect::<Result<_, _>>()?;
        let sizes: Vec<u32> = (0..spec.count).map(|rank| size(&spec.sizes, rank, spec.count)).collect();
        let sharded = |rank: usize| {
            rank.is_multiple_of(2) && (rank as f64) < 2.0 * spec.sharded * f64::from(spec.count)
        };
        let of = |rank: &usize| f64::from(sizes[*rank]);
        let all: f64 = (0..sizes.len()).map(|rank| of(&rank)).sum();
        let of_sharded: f64 = (0..sizes.len()).filter(|rank| sharded(*rank)).map(|rank| of(&rank)).sum();
        let maps = (spec.bytes - all * f64::from(spec.endpoint_bytes)).max(0.0);
        let chunks_of = |servers: f64| {
            let bytes = maps * servers / of_sharded.max(1.0);
            (bytes / regions.len() as f64 / f64::from(spec.chunk_bytes)).round().max(1.0) as u32
        };
        let mut services = Vec::with_capacity(sizes.len());
        for (rank, &servers) in sizes.iter().enumerate() {
            let chunks = if sharded(rank) { chunks_of(f64::from(servers)) } else { 0 };
            services.push(ServiceInfo { name: format!("shop/s{rank:06}").parse()?, servers, chunks });
        }
        let weight = |service_info: &ServiceInfo| exp(spec.popularity * ln(f64::from(service_info.servers)));
        Ok(Self {
            servers: sums(services.iter().map(|service_info| u64::from(service_info.servers))),
            chunks: sums(
                services.iter().map(|service_info| u64::from(service_info.chunks) * regions.len() as u64),
            ),
            popularity: sums(services.iter().map(weight)),
            services,
            regions,
            value_source: value_source(scenario.seed),
            endpoint_bytes: spec.endpoint_bytes as usize,
            chunk_bytes: spec.chunk_bytes as usize,
        })
    }

    /// Number of servers.
    pub(super) fn servers(&self) -> u64 {
        self.servers.last().copied().unwrap_or(0)
    }

    /// Number of chunks, over all regions.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks.last().copied().unwrap_or(0)
    }

    /// The service of the n-th server of all, and its number within the service.
    pub(super) fn server(&self, n: u64) -> (usize, u32) {
        let service = self.servers.partition_point(|sum| *sum <= n);
        (service, (n - (self.servers[service] - u64::from(self.services[service].servers))) as u32)
    }

    /// The service of the n-th chunk of all, its region, and its number within that region.
    pub(super) fn chunk(&self, n: u64) -> (usize, usize, u32) {
        let service = self.chunks.partition_point(|sum| *sum <= n);
        let per_region = u64::from(self.services[service].chunks);
        let within = n - (self.chunks[service] - per_region * self.regions.len() as u64);
        (service, (within / per_region) as usize, (within % per_region) as u32)
    }

    /// Draws a service that a program calls.
    pub(super) fn sample_service(&self, random: &mut Generator) -> usize {
        let all = self.popularity.last().copied().unwrap_or(0.0);
        let drawn = unit(random) * all;
        self.popularity.partition_point(|sum| *sum <= drawn).min(self.services.len() - 1)
    }

    /// The prefixes that a router follows for a service, as the client library does.
    pub(super) fn prefixes(&self, service: usize) -> Vec<Prefix> {
        let ServiceInfo { name, chunks, .. } = &self.services[service];
        let mut prefixes = vec![
            Prefix::from(&RecordKey::Service(name.clone())),
            Prefix::from(&RecordKey::Policy(name.clone())),
            Prefix::endpoints(name, None),
        ];
        if *chunks > 0 {
            prefixes.push(Prefix::shards(name, None));
        }
        prefixes
    }

    /// The key of a server's record, and a value for it.
    pub(super) fn endpoint(
        &self,
        service: usize,
        server: u32,
        salt: u64,
    ) -> Result<(Arc<str>, Bytes), Invalid> {
        let region = self.regions[server as usize % self.regions.len()].clone();
        let instance: InstanceId = format!("i{server:06}").parse()?;
        let key = RecordKey::Endpoint(self.services[service].name.clone(), region, instance).to_string();
        let value = self.value(self.endpoint_bytes.saturating_sub(key.len()), salt);
        Ok((key.into(), value))
    }

    /// The key of a chunk as of its `writing`-th version, and its value.
    pub(super) fn chunk_record(&self, chunk: u64, writing: u64) -> (Arc<str>, Bytes) {
        let (service, region, _) = self.chunk(chunk);
        let hash = mix64(mix64(chunk) ^ writing);
        let hash = ChunkHash(u128::from(hash) << 64 | u128::from(mix64(hash)));
        let key = RecordKey::ShardChunk(self.services[service].name.clone(), self.part(region), hash);
        let key = key.to_string();
        let value = self.value(self.chunk_bytes.saturating_sub(key.len()), hash.0 as u64);
        (key.into(), value)
    }

    /// The manifest record that lists a chunk.
    pub(super) fn manifest(&self, chunk: u64, salt: u64) -> (Arc<str>, Bytes) {
        let (service, region, _) = self.chunk(chunk);
        let service_info = &self.services[service];
        let key = RecordKey::ShardManifest(service_info.name.clone(), self.part(region)).to_string();
        let (each, rest) = MANIFEST_BYTES;
        let bytes = (each * service_info.chunks as usize + rest).min(fairmesh_rib::MAX_VALUE_BYTES);
        (key.into(), self.value(bytes, salt))
    }

    /// All records, ordered by key.
    pub(super) fn entries(&self) -> Result<Vec<(Arc<str>, Entry)>, Invalid> {
        let records = self.servers() + self.chunks() + 3 * self.services.len() as u64;
        let mut entries = Vec::with_capacity(records as usize);
        let mut add = |(key, value)| entries.push((key, Entry { value, revision: INITIAL_REVISION }));
        for (service, service_info) in self.services.iter().enumerate() {
            let name = &service_info.name;
            for key in [RecordKey::Service(name.clone()), RecordKey::Policy(name.clone())] {
                add((key.to_string().into(), self.value(SMALL_VALUE_BYTES, service as u64)));
            }
            for server in 0..service_info.servers {
                add(self.endpoint(service, server, mix64(u64::from(server)))?);
            }
        }
        for chunk in 0..self.chunks() {
            if self.chunk(chunk).2 == 0 {
                add(self.manifest(chunk, chunk));
            }
            add(self.chunk_record(chunk, 0));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(entries)
    }

    /// A value of this length, sliced from the shared source, so that it takes no memory of its own.
    fn value(&self, bytes: usize, salt: u64) -> Bytes {
        let bytes = bytes.min(VALUE_SOURCE_BYTES - 1);
        let from = (mix64(salt) % (VALUE_SOURCE_BYTES - bytes) as u64) as usize;
        self.value_source.slice(from..from + bytes)
    }

    fn part(&self, region: usize) -> ShardPart {
        ShardPart::Region(self.regions[region].clone())
    }
}

/// The distinct services that a machine's programs call.
pub(super) fn distinct_services(calls: &[Vec<usize>]) -> BTreeSet<usize> {
    calls.iter().flatten().copied().collect()
}

/// Number of servers of the service with this rank, by the distribution at the middle of its share of services.
fn size(sizes: &[Size], rank: u32, count: u32) -> u32 {
    let share = (f64::from(rank) + 0.5) / f64::from(count);
    let after = sizes.iter().position(|size| size.share <= share).unwrap_or(sizes.len());
    let (Some(low), Some(high)) = (sizes.get(after.saturating_sub(1)), sizes.get(after)) else {
        return sizes.last().map_or(1, |size| size.servers as u32);
    };
    let part = (ln(low.share) - ln(share)) / (ln(low.share) - ln(high.share));
    exp(ln(low.servers) + part * (ln(high.servers) - ln(low.servers))).round() as u32
}

fn sums<T: Copy + std::ops::Add<Output = T> + Default>(values: impl Iterator<Item = T>) -> Vec<T> {
    let add = |sum: &mut T, value| {
        *sum = *sum + value;
        Some(*sum)
    };
    values.scan(T::default(), add).collect()
}

fn value_source(seed: u64) -> Bytes {
    let mut random = Generator::new(seed);
    (0..VALUE_SOURCE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect::<Vec<u8>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_service_sizes_follow_configured_distribution() {
        let knots = [(1.0, 1.0), (200.0, 0.1), (2000.0, 0.02), (90_000.0, 0.00002)];
        let knots = knots.map(|(servers, share)| Size { servers, share });
        let sizes: Vec<u32> = (0..50_000).map(|rank| size(&knots, rank, 50_000)).collect();
        let above = |bound| sizes.iter().filter(|size| **size > bound).count();
        assert!((4990..=5010).contains(&above(200)), "{}", above(200));
        assert!((995..=1005).contains(&above(2000)), "{}", above(2000));
        assert_eq!((sizes[0], sizes[49_999]), (90_000, 1));
        assert!(sizes.windows(2).all(|pair| pair[0] >= pair[1]));
    }
}
