use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardMap, ShardPart};
use prost::Message;

use crate::{convert, record_encoding, v1};

/// Encoded chunks of a part in order, and the total number of their rows.
pub(super) struct Encoded<C> {
    pub(super) chunks: Vec<C>,
    pub(super) rows: usize,
}

/// A part as read from its entries: manifest and chunks.
pub(super) struct Part {
    pub(super) manifest: v1::ShardManifest,
    chunks: HashMap<ChunkHash, Bytes>,
}

pub(super) fn hash(chunk: &[u8]) -> ChunkHash {
    ChunkHash(xxhash_rust::xxh3::xxh3_128(chunk))
}

pub(super) fn check_hash(named: ChunkHash, chunk: &[u8]) -> Result<(), Invalid> {
    let found = hash(chunk);
    if found == named {
        return Ok(());
    }
    let problem = format!("the content of chunk {named} hashes to {found}");
    Err(Invalid::new("", problem, "write the shard map again: the chunk is damaged or misnamed"))
}

/// Adds the keys of one part to `entries`.
pub(super) fn write<C: Message>(
    service: &ServiceName,
    part: ShardPart,
    map: &ShardMap,
    encoded: Encoded<C>,
    entries: &mut BTreeMap<RecordKey, Bytes>,
) {
    let mut hashes = Vec::with_capacity(encoded.chunks.len());
    for chunk in &encoded.chunks {
        let chunk = record_encoding::bytes(chunk);
        let hash = hash(&chunk);
        hashes.push(Bytes::copy_from_slice(&hash.0.to_be_bytes()));
        entries.insert(RecordKey::ShardChunk(service.clone(), part.clone(), hash), chunk);
    }
    let manifest = v1::ShardManifest {
        version: map.version,
        first_key: convert::shard_key_bytes(map.interval.first),
        last_key: convert::shard_key_bytes(map.interval.last),
        chunks: hashes,
        shards: u32::try_from(encoded.rows).unwrap_or(u32::MAX),
    };
    entries.insert(RecordKey::ShardManifest(service.clone(), part), record_encoding::bytes(&manifest));
}

/// Groups entries by part. Parts without a manifest are left out.
pub(super) fn group(
    entries: impl IntoIterator<Item = (RecordKey, Bytes)>,
) -> Result<BTreeMap<ShardPart, Part>, Invalid> {
    let mut owner = None;
    let mut manifests = BTreeMap::new();
    let mut chunks: BTreeMap<ShardPart, HashMap<ChunkHash, Bytes>> = BTreeMap::new();
    for (key, value) in entries {
        match key {
            RecordKey::ShardManifest(service, part) => {
                let owner = owner.get_or_insert_with(|| service.clone());
                if *owner != service {
                    let problem = format!("entries belong to both {owner} and {service}");
                    return Err(Invalid::new("", problem, "decode the map of one service at a time"));
                }
                let manifest = read_manifest(&value).map_err(|e| e.within(part.to_string()))?;
                manifests.insert(part, manifest);
            }
            RecordKey::ShardChunk(_, part, hash) => {
                chunks.entry(part).or_default().insert(hash, value);
            }
            _ => {}
        }
    }
    let part = |(part, manifest)| {
        let chunks = chunks.remove(&part).unwrap_or_default();
        (part, Part { manifest, chunks })
    };
    Ok(manifests.into_iter().map(part).collect())
}

pub(super) fn read_manifest(value: &[u8]) -> Result<v1::ShardManifest, Invalid> {
    let manifest: v1::ShardManifest = record_encoding::message(value)?;
    convert::interval(&manifest.first_key, &manifest.last_key)?;
    let mut seen = HashSet::new();
    for (i, chunk) in manifest.chunks.iter().enumerate() {
        let hash = convert::read_u128("", chunk).map_err(|e| e.within(format!("chunks[{i}]")))?;
        // A short manifest that repeats a chunk could decode to a map of any size.
        if !seen.insert(hash) {
            let problem = format!("{} is named twice", ChunkHash(hash));
            return Err(Invalid::new(format!("chunks[{i}]"), problem, "name each chunk once"));
        }
    }
    Ok(manifest)
}

impl Part {
    /// Decodes the chunks in order and passes them to `each`, which returns the number of rows. Checks each chunk
    /// against its name, and the total number of rows against the manifest.
    pub(super) fn read<C: Message + Default>(
        &self,
        mut each: impl FnMut(C) -> Result<usize, Invalid>,
    ) -> Result<(), Invalid> {
        let mut rows = 0;
        for (i, named) in self.manifest.chunks.iter().enumerate() {
            let read = self.chunk(named).and_then(|chunk| each(record_encoding::message(chunk)?));
            rows += read.map_err(|e| e.within(format!("chunks[{i}]")))?;
        }
        if rows == self.manifest.shards as usize {
            return Ok(());
        }
        let problem = format!("is {}, but the chunks have {rows}", self.manifest.shards);
        Err(Invalid::new("shards", problem, "write the shard map again"))
    }

    fn chunk(&self, named: &[u8]) -> Result<&Bytes, Invalid> {
        let hash = ChunkHash(convert::read_u128("", named)?);
        let Some(chunk) = self.chunks.get(&hash) else {
            let problem = format!("chunk {hash} is missing");
            return Err(Invalid::new("", problem, "read the whole part at one revision"));
        };
        check_hash(hash, chunk)?;
        Ok(chunk)
    }
}
