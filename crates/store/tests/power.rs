//! Cuts the power of a disk that loses, keeps or tears what was not synced, and checks that nothing acknowledged is
//! missing, nothing is there in part, and no revision is left out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::{Arc, Mutex};

use fairmesh_store::Store;
use support::{
    Dice,
    disk::{Disk, Loss},
    workload::{self, Acknowledged, WRITERS},
};

/// How many batches a writer writes before the power fails at the latest: a store that never reaches the disk would
/// not notice that it is off.
const MOST: u64 = 100;

/// Runs the workload on a disk whose power fails again and again; the first violation ends it.
fn cut_power(disk: &Disk, loss: Loss, rounds: u64, seed: u64) -> Result<usize, String> {
    let mut dice = Dice::new(seed);
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    for round in 0..rounds {
        disk.cut_power_after(dice.below(2000));
        write_until_dark(disk, &acknowledged);
        disk.crash(loss, &mut dice);
        let acknowledged = acknowledged.lock().unwrap();
        let store = disk.open().map_err(|e| format!("round {round}: {e}"))?;
        let loaded = runtime().block_on(store.load()).map_err(|e| format!("round {round}: {e}"))?;
        workload::check(&loaded, &acknowledged).map_err(|e| format!("round {round}: {e}"))?;
        // The next round starts from what the crash left, not from a store that was closed in order.
        disk.cut_power_after(0);
        drop(store);
        disk.crash(loss, &mut dice);
    }
    let count = acknowledged.lock().unwrap().len();
    Ok(count)
}

fn write_until_dark(disk: &Disk, acknowledged: &Arc<Mutex<Vec<Acknowledged>>>) {
    // The power may fail while the store is being opened; then nothing is written this time.
    let Ok(store) = disk.open() else { return };
    let store = Arc::new(store);
    runtime().block_on(async {
        let Ok(loaded) = store.load().await else { return };
        let marks = workload::check(&loaded, &[]).unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for (writer, mark) in (0..WRITERS).zip(marks) {
            let acknowledged = acknowledged.clone();
            writers.spawn(workload::write(store.clone(), writer, mark, MOST, move |a| {
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
fn what_is_acknowledged_survives_when_everything_unsynced_is_lost() {
    let disk = Disk::default();
    drop(disk.open().unwrap());
    let acknowledged = cut_power(&disk, Loss::Everything, 100, 11).unwrap();
    assert!(acknowledged > 500, "only {acknowledged} batches: the power fails too early to prove anything");
}

#[test]
fn what_is_acknowledged_survives_when_unsynced_writes_are_torn() {
    for seed in 0..3 {
        let disk = Disk::default();
        drop(disk.open().unwrap());
        cut_power(&disk, Loss::Some, 60, seed).unwrap();
    }
}

#[test]
fn without_syncs_the_same_run_finds_a_lost_acknowledgement() {
    let disk = Disk::default();
    drop(disk.open().unwrap());
    disk.ignore_syncs();
    let violation = cut_power(&disk, Loss::Everything, 100, 11).unwrap_err();
    assert!(violation.contains("lost: Acknowledged"), "{violation}");
}

#[test]
fn without_syncs_torn_writes_do_not_go_unnoticed() {
    let disk = Disk::default();
    drop(disk.open().unwrap());
    disk.ignore_syncs();
    cut_power(&disk, Loss::Some, 100, 3).unwrap_err();
}
