//! Incremental reading of the parts of a shard map, for readers that do not hold the whole map in memory.

use fairmesh_model::{ChunkHash, InstanceId, Invalid, KeyRange, ReplicaState, Role, ShardId, ShardKey};

use super::{part, ranges, replicas};
use crate::{convert, record_encoding, v1};

/// The manifest of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The version of the map, equal in all parts.
    pub version: u64,
    /// The keys that the map covers.
    pub interval: KeyRange,
    /// The names of the chunks, in order.
    pub chunks: Vec<ChunkHash>,
    /// Total number of rows, which are shards or copies.
    pub rows: u32,
}

/// The copies in a chunk, in ascending order of shards.
#[derive(Debug)]
pub struct Copies {
    instances: Vec<InstanceId>,
    roles: Vec<Role>,
    states: Vec<ReplicaState>,
    chunk: v1::ReplicaChunk,
}

/// Reads a manifest.
///
/// # Errors
/// [`Invalid`] if the manifest is damaged or repeats a chunk.
pub fn read_manifest(value: &[u8]) -> Result<Manifest, Invalid> {
    let manifest = part::read_manifest(value)?;
    let chunks = manifest.chunks.iter().map(|chunk| convert::read_u128("chunks", chunk).map(ChunkHash));
    Ok(Manifest {
        version: manifest.version,
        interval: convert::interval(&manifest.first_key, &manifest.last_key)?,
        chunks: chunks.collect::<Result<_, _>>()?,
        rows: manifest.shards,
    })
}

/// Reads a chunk of the part `ranges`: shards with their starts, in ascending order.
///
/// # Errors
/// [`Invalid`] if the chunk is damaged, or its content does not match its name.
pub fn read_ranges(
    hash: ChunkHash,
    chunk: &[u8],
    mut each: impl FnMut(ShardId, ShardKey),
) -> Result<(), Invalid> {
    part::check_hash(hash, chunk)?;
    let chunk = record_encoding::message(chunk)?;
    ranges::check(&chunk)?;
    ranges::rows(&chunk).for_each(|(id, start)| each(id, start));
    Ok(())
}

/// Reads a chunk of a region's part.
///
/// # Errors
/// [`Invalid`] if the chunk is damaged, or its content does not match its name.
pub fn read_copies(hash: ChunkHash, chunk: &[u8]) -> Result<Copies, Invalid> {
    part::check_hash(hash, chunk)?;
    let chunk: v1::ReplicaChunk = record_encoding::message(chunk)?;
    replicas::check(&chunk)?;
    let state = |state: &i32| convert::read_enum::<v1::ReplicaState>("state", *state).map(Into::into);
    Ok(Copies {
        instances: chunk.instances.iter().map(InstanceId::new).collect::<Result<_, _>>()?,
        roles: chunk.roles.iter().map(Role::new).collect::<Result<_, _>>()?,
        states: chunk.state.iter().map(state).collect::<Result<_, _>>()?,
        chunk,
    })
}

impl Copies {
    /// The first and the last shard in the chunk; `None` if the chunk has no rows.
    pub fn span(&self) -> Option<(ShardId, ShardId)> {
        let shards = &self.chunk.shards;
        Some((ShardId(*shards.first()?), ShardId(*shards.last()?)))
    }

    /// The copies, each with shard, instance, role and state.
    pub fn rows(&self) -> impl Iterator<Item = (ShardId, &InstanceId, &Role, ReplicaState)> {
        let v1::ReplicaChunk { shards, instance, role, .. } = &self.chunk;
        let names = instance.iter().zip(role).zip(&self.states);
        shards.iter().zip(names).filter_map(|(shard, ((instance, role), state))| {
            // All rows have valid names, since the chunk was checked.
            let names = self.instances.get(*instance as usize).zip(self.roles.get(*role as usize));
            names.map(|(instance, role)| (ShardId(*shard), instance, role, *state))
        })
    }
}
