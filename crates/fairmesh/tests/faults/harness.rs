//! Processes, servers and load that the tests share.

mod certificates;
mod connection;
mod echo;
pub(crate) mod h2;
mod load;
mod netns;
pub(crate) mod openmetrics;
pub(crate) mod otlp;
mod process;
mod proxy;
mod raw;
mod serve;
mod world;

use std::{
    fmt::Display,
    io::{self, Write as _},
    time::Duration,
};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use certificates::Authority;
pub(crate) use connection::{Answer, Connection, Manner};
pub(crate) use echo::{Echo, NUMBER};
pub(crate) use load::{Caller, Kind, Load};
pub(crate) use netns::{Machines, THERE, path};
pub(crate) use process::{Process, Program, Run, run, tool};
pub(crate) use proxy::Proxy;
pub(crate) use raw::{RawServer, read_head, read_to_end, say};
pub(crate) use serve::{BURN, Local, Spec, free_port};
pub(crate) use world::World;

/// Says past the capture of what passing tests print that a test was skipped, and why.
pub(crate) fn skipped(cannot: &str, reason: impl Display) {
    let line = format!("skipped: {cannot} here: {reason}\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
}

/// How long a condition may take to come true: long, since it decides nothing but when a broken test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Tests that measure time hold this alone; the others share it.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// Runs beside other tests, each with a mesh of its own.
pub(crate) async fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Runs with no other test beside.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "still not so: {what}");
}
