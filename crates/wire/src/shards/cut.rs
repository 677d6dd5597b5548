use fairmesh_model::{ShardId, arith::mix64};

/// One shard in so many starts a chunk.
const MEAN_SHARDS: u64 = 2048;
/// The most shards in a chunk.
const MAX_SHARDS: usize = 8192;
/// The most bytes in a chunk, so far below [`crate::records::MAX_VALUE`] that the names in its first row do not matter.
const MAX_BYTES: usize = 224 * 1024;

/// Decides where chunks begin. The decision at a shard depends on its id alone, but where a chunk has grown to a limit.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    last: Option<ShardId>,
    shards: usize,
    bytes: usize,
}

impl Cutter {
    /// Whether a row of `shard`, `bytes` long, begins a chunk. Rows come in order; those of one shard stay together
    /// while they fit.
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

/// Whether a chunk begins at this shard, whatever stands before it.
pub(super) fn is_boundary(shard: ShardId) -> bool {
    mix64(shard.0.into()).is_multiple_of(MEAN_SHARDS)
}
