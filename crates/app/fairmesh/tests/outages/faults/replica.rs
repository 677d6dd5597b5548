//! Replicas whose disk is lost or full.

use std::fs;

use crate::harness::{Suite, now};

/// Limits of the writes that make the copy grow on a full disk: number of batches, keys per batch, bytes per value.
const BATCHES: u64 = 4;
const KEYS: u64 = 500;
const BYTES: usize = 2000;

pub(super) fn wiped(suite: &Suite) -> String {
    let us = &suite.fleet.us;
    us.daemon.kill();
    suite.goes_on();
    us.lose_disk();
    let back = now();
    suite.until("it has fetched everything", || {
        us.metric("fairmesh_replica_snapshots_total").is_some_and(|taken| taken >= 1.0)
    });
    suite.until("it has a copy", || us.state.join("copy.redb").exists());
    format!("it had everything again {:.1} s after its start", back.elapsed().as_secs_f64())
}

pub(super) fn full_disk(suite: &Suite) -> String {
    let eu = &suite.fleet.eu;
    let metric = |name: &str| eu.metric(name).expect("it answers");
    let (failures, saved) = ("fairmesh_replica_save_failures_total", "fairmesh_replica_saved_revision");
    // Restarts with an empty disk. Copy files never shrink, and a file enlarged by an earlier run could take more
    // writes before it must grow than the disk has room for at once.
    eu.daemon.kill();
    eu.daemon.revive();
    suite.until("it has a copy", || eu.metric(saved).is_some_and(|revision| revision > 0.0));
    let ballast = eu.daemon.inside(&eu.state).join("ballast");
    let left = super::fill(&ballast);
    let failed = metric(failures);
    let mut batches = 0;
    while metric(failures) == failed && batches < BATCHES {
        suite.bulk(batches..batches + 1, KEYS, (1, BYTES));
        suite.goes_on();
        batches += 1;
    }
    suite.until("saving fails", || metric(failures) > failed);
    assert_eq!(metric("fairmesh_replica_connected"), 1.0, "it goes on from memory");
    fs::remove_file(&ballast).unwrap();
    let (room, held) = (now(), metric("fairmesh_replica_revision"));
    suite.until("it saves again", || metric(saved) >= held);
    let told = format!(
        "the last {left} bytes were taken; it saved again {:.1} s after",
        room.elapsed().as_secs_f64()
    );
    suite.bulk(0..batches, KEYS, (2, 0));
    told
}
