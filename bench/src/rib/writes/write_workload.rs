//! The records of a large fleet, and batches that change them. All are valid for the API, and depend only on the size,
//! so that all sides get the same writes.
//!
//! A batch has about 116 KB in 1 to 1,000 records of one or two services, as in ServiceRouter's RIB (ServiceRouter
//! §4.1). The number of records is spread evenly over the orders of magnitude: from batches with a few chunks of a
//! changed shard map to batches of a thousand registering endpoints.

use std::ops::Range;

use fairmesh_model::{
    ChunkHash, Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Location, Record, RecordKey, Region,
    ServiceName, ShardPart, arith::mix64,
};
use fairmesh_rib::{Batch, Op};
use fairmesh_wire::{record_encoding, v1};
use prost::Message;

/// Shards per chunk for each kind of map, so that 1, 3, 10 or 32 chunks make a batch.
const SHARDS: [u32; 4] = [6000, 2000, 600, 185];
/// Chunks of every map.
const CHUNKS: usize = 32;
/// Approximate bytes of a shard in a chunk: 16 for its start and up to 3 for its number.
const SHARD_BYTES: u64 = 19;
/// Endpoints of every service without shards.
const ENDPOINTS: usize = 1000;
/// Approximate bytes of an endpoint, including its key.
const ENDPOINT_BYTES: u64 = 116;
/// Endpoints make one part in this many of all bytes.
const ENDPOINT_SHARE: u64 = 24;
/// Maximum bytes of a batch while a store is filled.
const FILL_BYTES: u64 = 1_000_000;

/// Content of a batch: a number of chunks of one kind of map, and a number of endpoints.
#[derive(Clone, Copy, Debug)]
struct Kind {
    sort: usize,
    chunks: usize,
    endpoints: usize,
}

/// Two kinds for each order of magnitude.
const KINDS: [Kind; 7] = [
    Kind { sort: 0, chunks: 1, endpoints: 0 },
    Kind { sort: 1, chunks: 3, endpoints: 0 },
    Kind { sort: 2, chunks: 10, endpoints: 0 },
    Kind { sort: 3, chunks: 32, endpoints: 0 },
    Kind { sort: 2, chunks: 9, endpoints: 100 },
    Kind { sort: 1, chunks: 2, endpoints: 316 },
    Kind { sort: 0, chunks: 0, endpoints: 1000 },
];

/// State of the written records, as needed for the next batch.
#[derive(Debug)]
pub(super) struct WriteWorkload {
    maps: [Vec<Map>; SHARDS.len()],
    /// Next map of each kind. Taken in turn, so that concurrent batches write different maps.
    turns: [usize; SHARDS.len()],
    services: Vec<ServiceName>,
    /// Next endpoint, counted over all services.
    endpoint: usize,
    batches: u64,
}

/// The shard map of one service. A batch rewrites some of its chunks.
#[derive(Debug)]
struct Map {
    service: ServiceName,
    /// Shards per chunk.
    shards: u32,
    version: u64,
    chunks: Vec<ChunkHash>,
    /// Next chunk.
    turn: usize,
}

impl WriteWorkload {
    /// A fleet whose records have about `bytes` bytes, including keys. Nothing is written yet.
    pub(super) fn of(bytes: u64) -> Self {
        let endpoints = bytes / ENDPOINT_SHARE / (ENDPOINTS as u64 * ENDPOINT_BYTES);
        // The bytes that are not endpoints are divided equally among the four kinds of maps.
        let maps = |sort: usize| {
            let map = CHUNKS as u64 * u64::from(SHARDS[sort]) * SHARD_BYTES;
            let count = ((bytes - bytes / ENDPOINT_SHARE) / SHARDS.len() as u64 / map).max(1);
            (0..count).map(|i| Map::new(service(&format!("map-{sort}-{i}")), SHARDS[sort])).collect()
        };
        Self {
            maps: [0, 1, 2, 3].map(maps),
            turns: [0; SHARDS.len()],
            services: (0..endpoints.max(1)).map(|i| service(&format!("replicated-{i}"))).collect(),
            endpoint: 0,
            batches: 0,
        }
    }

    /// Batches that write all records once.
    pub(super) fn filling(&mut self) -> impl Iterator<Item = Batch> {
        let maps = self.maps.iter_mut().flatten().flat_map(|map| {
            let at_once = (FILL_BYTES / (u64::from(map.shards) * SHARD_BYTES)).clamp(1, CHUNKS as u64);
            let parts = (CHUNKS as u64).div_ceil(at_once);
            (0..parts).map(move |_| at_once as usize).scan(map, |map, count| Some(map.rewrite(count)))
        });
        let endpoints = self.services.iter().map(|service| endpoints(service, 0..ENDPOINTS, 0));
        maps.chain(endpoints).map(|ops| Batch { ops })
    }

    /// The next batch of the stream.
    pub(super) fn change(&mut self) -> Batch {
        self.batches += 1;
        // Evenly over the orders of magnitude: the kinds at either end get half a weight, since nothing lies beyond.
        let drawn = mix64(self.batches) % (2 * KINDS.len() as u64 - 2);
        let kind = KINDS[drawn.div_ceil(2) as usize];
        let mut ops = Vec::new();
        if kind.chunks > 0 {
            let (maps, turn) = (&mut self.maps[kind.sort], &mut self.turns[kind.sort]);
            *turn = (*turn + 1) % maps.len();
            ops = maps[*turn].rewrite(kind.chunks);
        }
        if kind.endpoints > 0 {
            ops.append(&mut self.renew(kind.endpoints));
        }
        Batch { ops }
    }

    /// Rewrites the next `count` endpoints.
    fn renew(&mut self, count: usize) -> Vec<Op> {
        let all = self.services.len() * ENDPOINTS;
        let mut ops = Vec::with_capacity(count);
        let mut left = count;
        while left > 0 {
            let (service, first) = (self.endpoint / ENDPOINTS, self.endpoint % ENDPOINTS);
            let some = left.min(ENDPOINTS - first);
            ops.append(&mut endpoints(&self.services[service], first..first + some, self.batches));
            self.endpoint = (self.endpoint + some) % all;
            left -= some;
        }
        ops
    }
}

impl Map {
    fn new(service: ServiceName, shards: u32) -> Self {
        Self { service, shards, version: 0, chunks: Vec::new(), turn: 0 }
    }

    /// Writes new versions of the next `count` chunks, deletes the previous ones, and writes the manifest.
    fn rewrite(&mut self, count: usize) -> Vec<Op> {
        self.version += 1;
        let mut ops = Vec::with_capacity(2 * count + 1);
        for _ in 0..count {
            if self.turn == self.chunks.len() && self.turn == CHUNKS {
                self.turn = 0;
            }
            let chunk = self.chunk(self.turn);
            let hash = ChunkHash(xxhash_rust::xxh3::xxh3_128(&chunk));
            match self.chunks.get_mut(self.turn) {
                Some(before) => ops.push(Op::delete(key(&self.service, std::mem::replace(before, hash)))),
                None => self.chunks.push(hash),
            }
            ops.push(Op::put(key(&self.service, hash), chunk));
            self.turn += 1;
            if self.chunks.len() == CHUNKS {
                self.turn %= CHUNKS;
            }
        }
        ops.push(self.manifest());
        ops
    }

    /// Shards in order, with pseudorandom starts.
    fn chunk(&self, at: usize) -> Vec<u8> {
        let first = at as u32 * self.shards;
        let ids: Vec<u32> = (first..first + self.shards).collect();
        let starts = ids.iter().flat_map(|&id| {
            // The first shard starts at the lowest key.
            let below = if id == 0 { 0 } else { mix64(self.version << 32 | u64::from(id)) };
            (u128::from(id) << 108 | u128::from(below)).to_be_bytes()
        });
        let starts = starts.collect::<Vec<u8>>().into();
        v1::RangeChunk { ids, starts }.encode_to_vec()
    }

    fn manifest(&self) -> Op {
        let chunks = self.chunks.iter().map(|hash| hash.0.to_be_bytes().to_vec().into());
        let manifest = v1::ShardManifest {
            version: self.version,
            first_key: u128::MIN.to_be_bytes().to_vec().into(),
            last_key: u128::MAX.to_be_bytes().to_vec().into(),
            chunks: chunks.collect(),
            shards: self.shards * self.chunks.len() as u32,
        };
        let key = RecordKey::ShardManifest(self.service.clone(), ShardPart::Ranges);
        Op::put(key.to_string(), manifest.encode_to_vec())
    }
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(format!("bench/{name}")).expect("letters, digits and dashes make a name")
}

fn key(service: &ServiceName, hash: ChunkHash) -> String {
    RecordKey::ShardChunk(service.clone(), ShardPart::Ranges, hash).to_string()
}

/// Writes endpoints of a service; their content depends on `version`.
fn endpoints(service: &ServiceName, which: Range<usize>, version: u64) -> Vec<Op> {
    let region = Region::new("bench").expect("letters make a region");
    let build = format!("{:016x}", mix64(version));
    let endpoint = |i: usize| {
        let instance = InstanceId::new(format!("instance-{i}")).expect("letters and digits make an id");
        let endpoint = Endpoint {
            mtls: false,
            instance: instance.clone(),
            address: ([10, 0, (i >> 8) as u8, i as u8], 1024 + (version % 60_000) as u16).into(),
            location: Location::in_region(region.clone()),
            state: EndpointState::Serving,
            weight: FULL_WEIGHT,
            lease: None,
            labels: [("build".to_owned(), build.clone())].into(),
        };
        let key = RecordKey::Endpoint(service.clone(), region.clone(), instance);
        Op::put(key.to_string(), record_encoding::encode(&Record::from(endpoint)))
    };
    which.map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use fairmesh_model::{Prefix, ShardMap};
    use fairmesh_wire::shard_encoding;

    use super::*;

    type Store = BTreeMap<String, Bytes>;

    fn size(batch: &Batch) -> usize {
        batch.ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, Bytes::len)).sum()
    }

    fn write(store: &mut Store, batch: Batch) {
        batch.validate().unwrap();
        for op in batch.ops {
            match op.value {
                Some(value) => {
                    record_encoding::check(&op.key, &value).unwrap();
                    store.insert(op.key.to_string(), value);
                }
                None => assert!(store.remove(&*op.key).is_some(), "{} was not there", op.key),
            }
        }
    }

    fn map(store: &Store, service: &ServiceName) -> ShardMap {
        let prefix = Prefix::shards(service, None);
        let below = store.iter().filter(|(key, _)| prefix.covers(key));
        let entries = below.map(|(key, value)| (RecordKey::parse(key).unwrap(), value.clone()));
        shard_encoding::decode_map(entries).unwrap().unwrap()
    }

    #[test]
    fn workload_records_are_valid_and_store_keeps_requested_size() {
        const BYTES: u64 = 40_000_000;
        let mut workload = WriteWorkload::of(BYTES);
        let mut store = Store::new();
        workload.filling().for_each(|batch| write(&mut store, batch));
        let bytes = |store: &Store| store.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum::<u64>();
        assert!((BYTES * 8 / 10..BYTES * 12 / 10).contains(&bytes(&store)), "{}", bytes(&store));
        let (entries, before) = (store.len(), bytes(&store));
        for _ in 0..400 {
            write(&mut store, workload.change());
        }
        assert_eq!((store.len(), bytes(&store).abs_diff(before) < BYTES / 100), (entries, true));
        for sort in &workload.maps {
            let read = map(&store, &sort[0].service);
            assert_eq!(read.shards.len(), CHUNKS * sort[0].shards as usize);
        }
    }

    #[test]
    fn write_benchmark_batches_have_116_kilobytes_in_1_to_1000_records() {
        let mut workload = WriteWorkload::of(40_000_000);
        workload.filling().for_each(drop);
        let mut records = Vec::new();
        for _ in 0..1000 {
            let batch = workload.change();
            assert!((100_000..135_000).contains(&size(&batch)), "{}", size(&batch));
            records.push(batch.ops.iter().filter(|op| op.value.is_some()).count());
        }
        records.sort_unstable();
        // The smallest batch is one record and its manifest.
        assert_eq!((records[0], records[999]), (2, 1000));
        assert!((11..=33).contains(&records[500]), "{}", records[500]);
    }
}
