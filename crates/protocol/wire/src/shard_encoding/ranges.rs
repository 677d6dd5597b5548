use fairmesh_model::{Invalid, Shard, ShardId, ShardKey};
use prost::encoding::encoded_len_varint;

use super::{
    chunker::Chunker,
    part::{Encoded, Part},
};
use crate::v1::RangeChunk;

/// Length of a key, in bytes.
const KEY: usize = 16;

/// Encodes shards, in ascending order of their start, as chunks.
pub(super) fn encode(shards: &[Shard]) -> Encoded<RangeChunk> {
    let mut cutter = Chunker::default();
    let mut chunks: Vec<(Vec<u32>, Vec<u8>)> = Vec::new();
    for shard in shards {
        if cutter.begins(shard.id, KEY + encoded_len_varint(shard.id.0.into())) {
            chunks.push(Default::default());
        }
        if let Some((ids, starts)) = chunks.last_mut() {
            ids.push(shard.id.0);
            starts.extend(shard.start.0.to_be_bytes());
        }
    }
    let chunk = |(ids, starts): (Vec<u32>, Vec<u8>)| RangeChunk { ids, starts: starts.into() };
    Encoded { chunks: chunks.into_iter().map(chunk).collect(), rows: shards.len() }
}

/// Decodes shards without their copies, in ascending order of their start.
pub(super) fn decode(part: &Part) -> Result<Vec<Shard>, Invalid> {
    let mut shards: Vec<Shard> = Vec::new();
    part.read(|chunk: RangeChunk| {
        check(&chunk)?;
        if let (Some((_, first)), Some(last)) = (rows(&chunk).next(), shards.last())
            && first <= last.start
        {
            return Err(out_of_order(first));
        }
        let rows = rows(&chunk).map(|(id, start)| Shard { id, start, replicas: Vec::new() });
        shards.extend(rows);
        Ok(chunk.ids.len())
    })?;
    Ok(shards)
}

/// Checks that every id has a start, and that starts ascend.
pub(super) fn check(chunk: &RangeChunk) -> Result<(), Invalid> {
    if chunk.ids.len() * KEY != chunk.starts.len() {
        let problem = format!("{} shards have {} bytes of starts", chunk.ids.len(), chunk.starts.len());
        return Err(Invalid::new("starts", problem, "write 16 bytes a shard"));
    }
    let ordered = rows(chunk).zip(rows(chunk).skip(1)).find(|((_, a), (_, b))| a >= b);
    ordered.map_or(Ok(()), |(_, (_, start))| Err(out_of_order(start)))
}

fn out_of_order(start: ShardKey) -> Invalid {
    let problem = format!("{start} does not follow the start before it");
    Invalid::new("starts", problem, "order shards by ascending start")
}

pub(super) fn rows(chunk: &RangeChunk) -> impl Iterator<Item = (ShardId, ShardKey)> {
    let starts = chunk.starts.as_chunks::<KEY>().0.iter().map(|start| ShardKey(u128::from_be_bytes(*start)));
    chunk.ids.iter().copied().map(ShardId).zip(starts)
}
