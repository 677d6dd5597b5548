//! What differs between two chunks, by shard.

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{Invalid, ShardId, ShardKey, ShardPart};

use super::unfit;
use crate::{
    convert, records,
    shards::{
        ranges,
        replicas::{RawRow, Writer},
    },
    v1::{RangeChunk, ReplicaChunk, ShardChunkPatch, shard_chunk_patch::Rows},
};

/// What is to be done to `before` so that it says what `after` says.
pub(super) fn difference(part: &ShardPart, before: &[u8], after: &[u8]) -> Result<ShardChunkPatch, Invalid> {
    match part {
        ShardPart::Ranges => starts(&records::message(before)?, &records::message(after)?),
        ShardPart::Region(_) => copies(&records::message(before)?, &records::message(after)?),
    }
}

/// The chunk after `before`, with how many rows came and how many went.
pub(super) fn apply(patch: &ShardChunkPatch, before: &[u8]) -> Result<(Bytes, u32, u32), Invalid> {
    let (chunk, after, before) = match &patch.rows {
        Some(Rows::Starts(new)) => {
            let before: RangeChunk = records::message(before)?;
            let after = with_starts(&before, &patch.gone, new)?;
            (records::bytes(&after), after.ids.len(), before.ids.len())
        }
        Some(Rows::Copies(new)) => {
            let before: ReplicaChunk = records::message(before)?;
            let after = with_copies(&before, &patch.gone, new)?;
            (records::bytes(&after), after.shards.len(), before.shards.len())
        }
        None => return Err(unfit("a chunk changes in a way that is unknown here")),
    };
    let count = |rows| u32::try_from(rows).map_err(|_| unfit("a chunk has too many rows"));
    Ok((chunk, count(after)?, count(before)?))
}

fn starts(before: &RangeChunk, after: &RangeChunk) -> Result<ShardChunkPatch, Invalid> {
    let (before, after) = (by_id(before)?, by_id(after)?);
    let (gone, new) = compare(&before, &after);
    Ok(ShardChunkPatch { gone, rows: Some(Rows::Starts(chunk_of(new))), ..ShardChunkPatch::default() })
}

fn with_starts(before: &RangeChunk, gone: &[u32], new: &RangeChunk) -> Result<RangeChunk, Invalid> {
    let mut rows = by_id(before)?;
    for shard in gone {
        rows.remove(shard);
    }
    rows.extend(by_id(new)?);
    Ok(chunk_of(rows))
}

fn by_id(chunk: &RangeChunk) -> Result<BTreeMap<u32, ShardKey>, Invalid> {
    ranges::check(chunk)?;
    Ok(ranges::rows(chunk).map(|(ShardId(id), start)| (id, start)).collect())
}

fn chunk_of(rows: impl IntoIterator<Item = (u32, ShardKey)>) -> RangeChunk {
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, start)| *start);
    let starts: Vec<u8> = rows.iter().flat_map(|(_, start)| start.0.to_be_bytes()).collect();
    RangeChunk { ids: rows.into_iter().map(|(id, _)| id).collect(), starts: starts.into() }
}

fn copies(before: &ReplicaChunk, after: &ReplicaChunk) -> Result<ShardChunkPatch, Invalid> {
    let (rows, rows_after) = (rows(before, None)?, rows(after, None)?);
    let (gone, new) = compare(&by_shard(&rows), &by_shard(&rows_after));
    let mut writer = Writer::after(before);
    new.iter().flat_map(|(_, rows)| rows.iter()).for_each(|row| writer.push(*row));
    Ok(ShardChunkPatch { gone, rows: Some(Rows::Copies(writer.chunk)), ..ShardChunkPatch::default() })
}

fn with_copies(before: &ReplicaChunk, gone: &[u32], new: &ReplicaChunk) -> Result<ReplicaChunk, Invalid> {
    let (held, new) = (rows(before, None)?, rows(new, Some(before))?);
    let mut shards = by_shard(&held);
    for shard in gone {
        shards.remove(shard);
    }
    shards.extend(by_shard(&new));
    let mut writer = Writer::default();
    shards.values().copied().flatten().for_each(|row| writer.push(*row));
    Ok(writer.chunk)
}

/// The rows of a chunk, whose numbers of names may go on from those of another.
fn rows<'a>(chunk: &'a ReplicaChunk, names: Option<&'a ReplicaChunk>) -> Result<Vec<RawRow<'a>>, Invalid> {
    let all = |before: Option<&'a Vec<String>>, own: &'a [String]| -> Vec<&'a str> {
        before.into_iter().flatten().chain(own).map(String::as_str).collect()
    };
    let instances = all(names.map(|names| &names.instances), &chunk.instances);
    let roles = all(names.map(|names| &names.roles), &chunk.roles);
    let count = chunk.shards.len();
    if [chunk.instance.len(), chunk.role.len(), chunk.state.len()] != [count; 3] {
        return Err(unfit("the lists are not equally long"));
    }
    let name = |names: &[&'a str], number: u32| {
        names.get(number as usize).copied().ok_or_else(|| unfit("a row names nobody"))
    };
    let row = |i: usize| {
        convert::known::<crate::v1::ReplicaState>("state", chunk.state[i])?;
        let (instance, role) = (name(&instances, chunk.instance[i])?, name(&roles, chunk.role[i])?);
        Ok((chunk.shards[i], instance, role, chunk.state[i]))
    };
    (0..count).map(row).collect()
}

/// The rows of each shard, which stand together.
fn by_shard<'a, 'b>(rows: &'b [RawRow<'a>]) -> BTreeMap<u32, &'b [RawRow<'a>]> {
    rows.chunk_by(|a, b| a.0 == b.0).map(|rows| (rows[0].0, rows)).collect()
}

/// The keys that are gone, and what is new or another.
fn compare<V: Copy + PartialEq>(
    before: &BTreeMap<u32, V>,
    after: &BTreeMap<u32, V>,
) -> (Vec<u32>, Vec<(u32, V)>) {
    let gone = before.keys().filter(|key| !after.contains_key(key)).copied().collect();
    let new = after.iter().filter(|(key, value)| before.get(key) != Some(value));
    (gone, new.map(|(key, value)| (*key, *value)).collect())
}
