use fairmesh_model::{ShardId, arith::mix64};

/// Mean number of shards per chunk. On average, one in this many shards starts a new chunk.
const MEAN_SHARDS: u64 = 2048;
/// Maximum number of shards in a chunk.
const MAX_SHARDS: usize = 8192;
/// Maximum length of a chunk in bytes: far enough below [`crate::records::MAX_VALUE`] for the names in its first row.
const MAX_BYTES: usize = 224 * 1024;

/// Decides chunk boundaries. The decision at a shard depends only on the shard's id, unless the chunk has reached a
/// limit.
#[derive(Debug, Default)]
pub(super) struct Chunker {
    last: Option<ShardId>,
    shards: usize,
    bytes: usize,
}

impl Chunker {
    /// Whether a row of `shard` with `bytes` bytes starts a new chunk. Rows are in order. Rows of the same shard stay
    /// in one chunk while they fit.
    pub(super) fn begins(&mut self, shard: ShardId, bytes: usize) -> bool {
        let another = self.last != Some(shard);
        let begins = match self.last {
            None => true,
            Some(_) if self.bytes + bytes > MAX_BYTES => true,
            Some(_) => another && (is_boundary(shard) || self.shards == MAX_SHARDS),
        };
        if begins {
            (self.shards, self.bytes) = (0, 0);
        }
        self.last = Some(shard);
        self.shards += usize::from(another || begins);
        self.bytes += bytes;
        begins
    }
}

/// Whether a chunk always starts at this shard, regardless of earlier shards.
pub(super) fn is_boundary(shard: ShardId) -> bool {
    mix64(shard.0.into()).is_multiple_of(MEAN_SHARDS)
}
