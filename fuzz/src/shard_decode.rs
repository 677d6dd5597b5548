//! Decoding parts of a shard map never panics, and a valid map survives encoding and decoding unchanged.

use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use fairmesh_model::{
    ChunkHash, InstanceId, KeyRange, RecordKey, Region, Replica, ReplicaState, Role, ServiceName, Shard,
    ShardId, ShardKey, ShardMap, ShardPart,
};
use fairmesh_wire::{record_encoding, shard_encoding};

#[derive(Arbitrary, Debug)]
enum Input {
    /// Bytes at keys, chunks under the right names.
    Raw(Vec<(Place, Vec<u8>)>),
    /// A map, and what is done to one of its entries.
    Map { version: u64, shards: Vec<(u32, u64, Vec<Copy>)>, damage: Option<(usize, usize, u8)> },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Place {
    manifest: bool,
    region: bool,
}

#[derive(Arbitrary, Debug)]
struct Copy {
    instance: u8,
    region: String,
    role: u8,
    state: u8,
}

fn service() -> ServiceName {
    ServiceName::new("shop/cart").expect("the name is well formed")
}

fn raw((place, value): (Place, Vec<u8>)) -> (RecordKey, Bytes) {
    let eu = Region::new("eu").expect("the name is well formed");
    let part = if place.region { ShardPart::Region(eu) } else { ShardPart::Ranges };
    let hash = ChunkHash(xxhash_rust::xxh3::xxh3_128(&value));
    let key = match place.manifest {
        true => RecordKey::ShardManifest(service(), part),
        false => RecordKey::ShardChunk(service(), part, hash),
    };
    (key, value.into())
}

fn replica(copy: &Copy) -> Option<Replica> {
    let states = [ReplicaState::Starting, ReplicaState::Serving, ReplicaState::Stopping];
    Some(Replica {
        instance: InstanceId::new(format!("i{}", copy.instance)).ok()?,
        region: Region::new(&copy.region).ok()?,
        role: Role::new(format!("r{}", copy.role % 4)).ok()?,
        state: states[usize::from(copy.state) % states.len()],
    })
}

/// The map as it comes back: copies grouped by region.
fn grouped(mut map: ShardMap) -> ShardMap {
    map.shards.iter_mut().for_each(|shard| shard.replicas.sort_by(|a, b| a.region.cmp(&b.region)));
    map
}

fn map(version: u64, mut shards: Vec<(u32, u64, Vec<Copy>)>) -> Option<ShardMap> {
    shards.sort_by_key(|shard| shard.1);
    let shards = shards.iter().map(|(id, start, copies)| Shard {
        id: ShardId(*id),
        start: ShardKey((*start).into()),
        replicas: copies.iter().filter_map(replica).collect(),
    });
    let shards: Vec<Shard> = shards.collect();
    let map = ShardMap { version, interval: KeyRange::new(shards.first()?.start, None).ok()?, shards };
    map.validate().ok().map(|()| map)
}

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    if let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) {
        of(input);
    }
}

fn of(input: Input) {
    match input {
        Input::Raw(entries) => {
            let entries: Vec<_> = entries.into_iter().map(raw).collect();
            for (key, value) in &entries {
                let _ = record_encoding::check(&key.to_string(), value);
            }
            if let Ok(Some(map)) = shard_encoding::decode_map(entries) {
                assert_eq!(map.validate(), Ok(()));
            }
        }
        Input::Map { version, shards, damage } => {
            let Some(map) = map(version, shards) else { return };
            // Through texts, as it travels.
            let mut entries: Vec<_> = shard_encoding::encode_map(&service(), &map)
                .into_iter()
                .map(|(key, value)| (key.to_string(), value))
                .collect();
            for (key, value) in &entries {
                assert!(
                    record_encoding::check(key, value).is_ok(),
                    "{key}: {:?}",
                    record_encoding::check(key, value)
                );
            }
            if let Some((entry, byte, change)) = damage {
                let count = entries.len();
                let value = &mut entries[entry % count].1;
                let mut bytes = value.to_vec();
                let length = bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(byte % length) {
                    *byte ^= change;
                }
                *value = bytes.into();
            }
            let parsed = entries
                .iter()
                .map(|(key, value)| (RecordKey::parse(key).expect("a key reads back"), value.clone()));
            let decoded = shard_encoding::decode_map(parsed.collect::<Vec<_>>());
            match damage {
                Some(_) => drop(decoded),
                None => assert_eq!(decoded, Ok(Some(grouped(map)))),
            }
        }
    }
}
