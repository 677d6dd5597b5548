//! The faults, one file per affected component.

pub(crate) mod clock;
mod control;
mod etcd;
mod region;
mod replica;
mod root;
mod rush;
mod slow;

use std::{fs::File, io::Write, path::Path};

use crate::harness::Suite;

/// Name of a fault, and the function that causes it and returns a report.
pub(crate) type Fault = (&'static str, fn(&Suite) -> String);

/// All faults of the short form, in order.
pub(crate) const FAULTS: &[Fault] = &[
    ("the leader of etcd is killed", etcd::leader_killed),
    ("etcd loses a minority", etcd::minority_lost),
    ("etcd loses its majority", etcd::majority_lost),
    ("a region is cut off", region::cut_off),
    ("a replica loses its disk", replica::wiped),
    ("the clock of a replica jumps", clock::jumps),
    ("the disk of a replica is full", replica::full_disk),
    ("the disk of a control plane is full", control::full_disk),
    ("a watcher is slow", slow::watcher),
    ("the root restarts below a crowd", root::restarts),
    ("a burst of updates comes", rush::burst_of_updates),
    ("history is compacted under sleepers", rush::history_compacted),
];

/// Faults that take long, in the long form only.
pub(crate) const LONG_FAULTS: &[Fault] =
    &[("the control plane is cut off from etcd", control::cut_off_from_etcd)];

/// Fills the disk with a file; returns its size in bytes.
fn fill(path: &Path) -> u64 {
    let (mut file, mut bytes) = (File::create(path).unwrap(), 0);
    while file.write_all(&[0; 4096]).is_ok() {
        bytes += 4096;
    }
    bytes
}
