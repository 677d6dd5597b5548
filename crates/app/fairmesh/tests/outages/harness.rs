//! Hosts, their processes, and the clients.

mod burst;
mod calls;
mod crowd;
mod daemon;
mod etcd;
mod fleet;
mod network;
mod readers;
mod recorder;
pub(crate) mod registers;
mod suite;
mod users;
mod watchers;
mod writers;

use std::time::{Duration, Instant};

pub(crate) use burst::burst;
pub(crate) use crowd::Crowd;
pub(crate) use daemon::{Daemon, Plan};
use fairmesh_test_support::eventually_within;
pub(crate) use fleet::Fleet;
pub(crate) use network::{Host, Network, Place};
pub(crate) use recorder::Recorder;
pub(crate) use suite::Suite;
pub(crate) use users::Users;
pub(crate) use watchers::Watcher;

/// Time limit of a condition. Long, since it only decides when a failing test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// The clock of the whole test.
#[allow(clippy::disallowed_methods, reason = "what is measured is the time that real processes take")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits until `is_so` returns true.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(eventually_within(PATIENCE, is_so), "still not so: {what}");
}
