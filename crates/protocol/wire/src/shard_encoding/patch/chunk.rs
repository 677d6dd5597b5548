//! Chunks as rows by shard, and patches of chunks.

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{Invalid, ShardId, ShardKey};

use super::mismatch;
use crate::{
    convert, record_encoding,
    shard_encoding::{
        ranges,
        replicas::{ChunkWriter, RawRow},
    },
    v1::{RangeChunk, ReplicaChunk, ShardChunkPatch, shard_chunk_patch::Rows},
};

/// Returns the patched chunk, with the numbers of added and removed rows.
pub(super) fn apply(patch: &ShardChunkPatch, before: &[u8]) -> Result<(Bytes, u32, u32), Invalid> {
    let (chunk, after, before) = match &patch.rows {
        Some(Rows::Starts(new)) => {
            let before: RangeChunk = record_encoding::message(before)?;
            let after = with_starts(&before, &patch.removed, new)?;
            (record_encoding::bytes(&after), after.ids.len(), before.ids.len())
        }
        Some(Rows::Copies(new)) => {
            let before: ReplicaChunk = record_encoding::message(before)?;
            let after = with_copies(&before, &patch.removed, new)?;
            (record_encoding::bytes(&after), after.shards.len(), before.shards.len())
        }
        None => return Err(mismatch("a chunk patch has an unknown form")),
    };
    let count = |rows| u32::try_from(rows).map_err(|_| mismatch("a chunk has too many rows"));
    Ok((chunk, count(after)?, count(before)?))
}

fn with_starts(before: &RangeChunk, removed: &[u32], new: &RangeChunk) -> Result<RangeChunk, Invalid> {
    let mut rows = by_id(before)?;
    for shard in removed {
        rows.remove(shard);
    }
    rows.extend(by_id(new)?);
    Ok(chunk_of(rows))
}

pub(super) fn by_id(chunk: &RangeChunk) -> Result<BTreeMap<u32, ShardKey>, Invalid> {
    ranges::check(chunk)?;
    Ok(ranges::rows(chunk).map(|(ShardId(id), start)| (id, start)).collect())
}

pub(super) fn chunk_of(rows: impl IntoIterator<Item = (u32, ShardKey)>) -> RangeChunk {
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, start)| *start);
    let starts: Vec<u8> = rows.iter().flat_map(|(_, start)| start.0.to_be_bytes()).collect();
    RangeChunk { ids: rows.into_iter().map(|(id, _)| id).collect(), starts: starts.into() }
}

fn with_copies(before: &ReplicaChunk, removed: &[u32], new: &ReplicaChunk) -> Result<ReplicaChunk, Invalid> {
    let (held, new) = (rows(before, None)?, rows(new, Some(before))?);
    let mut shards = by_shard(&held);
    for shard in removed {
        shards.remove(shard);
    }
    shards.extend(by_shard(&new));
    let mut writer = ChunkWriter::default();
    shards.values().copied().flatten().for_each(|row| writer.push(*row));
    Ok(writer.chunk)
}

/// The rows of a chunk. The chunk's indices of names may continue those of another chunk.
pub(super) fn rows<'a>(
    chunk: &'a ReplicaChunk,
    names: Option<&'a ReplicaChunk>,
) -> Result<Vec<RawRow<'a>>, Invalid> {
    let all = |before: Option<&'a Vec<String>>, own: &'a [String]| -> Vec<&'a str> {
        before.into_iter().flatten().chain(own).map(String::as_str).collect()
    };
    let instances = all(names.map(|names| &names.instances), &chunk.instances);
    let roles = all(names.map(|names| &names.roles), &chunk.roles);
    let count = chunk.shards.len();
    if [chunk.instance.len(), chunk.role.len(), chunk.state.len()] != [count; 3] {
        return Err(mismatch("the lists differ in length"));
    }
    let name = |names: &[&'a str], number: u32| {
        names.get(number as usize).copied().ok_or_else(|| mismatch("a row has an unknown name"))
    };
    let row = |i: usize| {
        convert::read_enum::<crate::v1::ReplicaState>("state", chunk.state[i])?;
        let (instance, role) = (name(&instances, chunk.instance[i])?, name(&roles, chunk.role[i])?);
        Ok((chunk.shards[i], instance, role, chunk.state[i]))
    };
    (0..count).map(row).collect()
}

/// Groups rows by shard. Rows of the same shard are adjacent.
pub(super) fn by_shard<'a, 'b>(rows: &'b [RawRow<'a>]) -> BTreeMap<u32, &'b [RawRow<'a>]> {
    rows.chunk_by(|a, b| a.0 == b.0).map(|rows| (rows[0].0, rows)).collect()
}
