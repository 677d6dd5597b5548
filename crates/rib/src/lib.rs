//! The routing information base: a versioned key space, and how its changes reach everybody who asked for them (ServiceRouter §3.1, §3.2, §4.1).
//!
//! It sits above `wire` and below everything that holds or follows records. [`Table`] is the data, [`Node`] the data with
//! its watchers, as a control plane, a replica and an agent hold it; [`server`] answers callers from a node, [`upstream`]
//! follows another process, [`cache`] keeps copies on disk. Persistence is the store's.
//!
//! A watcher owes its memory to the keys that changed, not to the changes: a node remembers which keys a watcher has yet
//! to see and reads their values when it is ready for them, so bursts coalesce and a slow watcher costs a bounded set of
//! keys. A queue of changes per watcher was rejected: it grows with the slowest reader and delivers what is outdated.

mod about;
mod batch;
pub mod cache;
mod forward;
mod hub;
mod marks;
mod node;
mod plain;
mod prefixes;
pub mod server;
mod table;
mod update;
pub mod upstream;

pub use about::{About, Kind};
pub use batch::{
    Batch, Commit, Conflict, Entry, Expect, MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_OPS, MAX_VALUE_BYTES, Op,
};
pub use forward::Forward;
pub use hub::{MAX_DIRTY, Pulled, WatcherId, WatcherInfo};
pub use node::{Acked, Behind, Node, Values, Watcher};
pub use plain::{PlainNode, Woken};
pub use prefixes::covering;
pub use table::{DEFAULT_LOG, Table};
pub use update::{Resumed, Snapshot, Update};
