mod kind;
mod kinds;
mod prefix;
mod revision;
mod rib_key;
mod shard_key;

pub use kind::{Audit, KindHistory, KindRules, KindScope, Readers, RecordKind, RecordList, Writers};
pub use kinds::Record;
pub use prefix::Prefix;
pub use revision::{Cursor, Revision, StoreId};
pub use rib_key::RecordKey;
pub use shard_key::{ChunkHash, ShardPart};
