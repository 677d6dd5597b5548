//! The routing information base (RIB): a versioned key space, and the delivery of its changes to subscribers
//! (ServiceRouter §3.1, §3.2, §4.1).
//!
//! The crate sits above `wire` and below every crate that stores or follows records. [`Table`] is the data. [`Node`] is the data
//! with its watchers, in a control plane, a replica or an agent. [`server`] serves a node, and [`follower`] follows another
//! process. A [`Mirror`] is the part of the data that a follower needs, and [`disk_cache`] stores copies on disk. `store` persists.
//!
//! The memory of a watcher is bounded by the number of changed keys, not by the number of changes. A node remembers a
//! watcher's dirty keys and reads their values when the watcher is ready. Bursts therefore coalesce, and a slow
//! watcher costs a bounded set of keys. A queue of changes per watcher was rejected: it grows with the slowest reader
//! and delivers outdated values.

// Without the feature `server`, some code is unused.
#![cfg_attr(not(feature = "server"), allow(dead_code, unreachable_pub))]

#[cfg(feature = "server")]
pub mod access;
mod batch;
mod coalesced_updates;
mod count_relay;
mod covering_prefixes;
pub mod disk_cache;
mod followed_prefixes;
pub mod follower;
#[cfg(feature = "server")]
mod forwarder;
#[cfg(feature = "node")]
mod node;
#[cfg(feature = "node")]
mod node_core;
mod peer_info;
#[cfg(feature = "node")]
mod progress_schedule;
mod record_mirror;
#[cfg(feature = "node")]
mod report_relay;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "node")]
mod table;
#[cfg(feature = "node")]
mod terminated_watches;
mod update;
pub mod wall_clock;
#[cfg(feature = "node")]
mod watcher_hub;

pub use batch::{
    Batch, Commit, Conflict, Entry, Expect, MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_OPS, MAX_VALUE_BYTES, Op,
};
pub use coalesced_updates::CoalescedUpdates;
pub use count_relay::{CountRelay, send_counts, settle_counts};
pub use covering_prefixes::covering;
#[cfg(feature = "server")]
pub use forwarder::Forwarder;
#[cfg(feature = "node")]
pub use node::{AckStatus, BehindWatcher, Entries, Node, StaleUpdate, Values, Watcher};
#[cfg(feature = "node")]
pub use node_core::{NodeCore, WokenWatchers};
pub use peer_info::{PeerInfo, PeerKind};
pub use record_mirror::{ArrivedRecord, Mirror};
#[cfg(feature = "node")]
pub use report_relay::ReportRelay;
#[cfg(feature = "node")]
pub use table::{DEFAULT_LOG_LEN, Table};
pub use update::{Resumed, Snapshot, Update};
#[cfg(feature = "node")]
pub use watcher_hub::{MAX_DIRTY, PendingUpdate, WatcherId, WatcherInfo};
