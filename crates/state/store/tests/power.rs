//! Repeatedly cuts the power of a disk that loses, keeps or tears unsynced writes. No acknowledged batch may be
//! missing, no batch stored in part, and no revision left out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::{Arc, Mutex};

use fairmesh_store::Store;
use fairmesh_test_support::is_soak;
use support::{
    Random,
    disk::{Disk, Loss},
    workload::{self, Acknowledged, WRITERS},
};

/// Maximum number of batches that a writer writes before the power fails. Without a maximum, a store that never
/// reached the disk would not notice the failure.
const MAX_BATCHES: u64 = 100;

/// Number of power failures. The short run detects ignored syncs just as reliably.
fn rounds() -> u64 {
    if is_soak() { 100 } else { 30 }
}

/// Runs the workload on a disk whose power fails repeatedly, until the first violation or the last round.
fn cut_power(disk: &Disk, loss: Loss, seed: u64) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    for round in 0..rounds() {
        disk.cut_power_after(random.below(2000));
        write_until_power_failure(disk, &acknowledged);
        disk.crash(loss, &mut random);
        let acknowledged = acknowledged.lock().unwrap();
        let store = disk.open().map_err(|e| format!("round {round}: {e}"))?;
        let loaded = runtime().block_on(store.load()).map_err(|e| format!("round {round}: {e}"))?;
        workload::check(&loaded, &acknowledged).map_err(|e| format!("round {round}: {e}"))?;
        // The next round starts from the state after the crash, not from a properly closed store.
        disk.cut_power_after(0);
        drop(store);
        disk.crash(loss, &mut random);
    }
    let count = acknowledged.lock().unwrap().len();
    Ok(count)
}

fn write_until_power_failure(disk: &Disk, acknowledged: &Arc<Mutex<Vec<Acknowledged>>>) {
    // The power may fail while the store is opened; this round then writes nothing.
    let Ok(store) = disk.open() else { return };
    let store = Arc::new(store);
    runtime().block_on(async {
        let Ok(loaded) = store.load().await else { return };
        let marks = workload::check(&loaded, &[]).unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for (writer, mark) in (0..WRITERS).zip(marks) {
            let acknowledged = acknowledged.clone();
            writers.spawn(workload::write(store.clone(), writer, mark, MAX_BATCHES, move |a| {
                acknowledged.lock().unwrap().push(a);
            }));
        }
        writers.join_all().await;
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn acknowledged_batches_survive_power_loss_without_unsynced_writes() {
    let disk = Disk::default();
    drop(disk.open().unwrap());
    let acknowledged = cut_power(&disk, Loss::Everything, 11).unwrap();
    assert!(
        acknowledged as u64 > 5 * rounds(),
        "only {acknowledged} batches: the power fails too early to prove anything"
    );
}

#[test]
fn acknowledged_batches_survive_power_loss_with_torn_unsynced_writes() {
    for seed in 0..3 {
        let disk = Disk::default();
        drop(disk.open().unwrap());
        cut_power(&disk, Loss::Some, seed).unwrap();
    }
}

#[test]
fn power_loss_test_detects_lost_writes_if_store_never_syncs() {
    let disk = Disk::default();
    drop(disk.open().unwrap());
    disk.ignore_syncs();
    let violation = cut_power(&disk, Loss::Everything, 11).unwrap_err();
    assert!(violation.contains("lost: Acknowledged"), "{violation}");
}

#[test]
fn power_loss_test_detects_torn_writes_if_store_never_syncs() {
    let disk = Disk::default();
    drop(disk.open().unwrap());
    disk.ignore_syncs();
    cut_power(&disk, Loss::Some, 3).unwrap_err();
}
