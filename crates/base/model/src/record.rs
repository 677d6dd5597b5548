mod key_prefix;
mod kind;
mod kind_table;
mod revision;
mod rib_key;
mod shard_map_key;

pub use key_prefix::Prefix;
pub use kind::{Audit, KindHistory, KindRules, KindScope, Readers, RecordKind, RecordList, Writers};
pub use kind_table::Record;
pub use revision::{Cursor, Revision, StoreId};
pub use rib_key::RecordKey;
pub use shard_map_key::{ChunkHash, ShardPart};
