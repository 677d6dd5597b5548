//! What goes wrong, one file for each part that it goes wrong with.

pub(crate) mod clock;
mod etcd;
mod region;
mod replica;
mod root;
mod rush;
mod slow;

use crate::harness::Suite;

/// What goes wrong, and does it.
pub(crate) type Fault = (&'static str, fn(&Suite) -> String);

/// Everything that is made to go wrong, in the order of the short form.
pub(crate) const FAULTS: &[Fault] = &[
    ("the leader of etcd is killed", etcd::leader_killed),
    ("etcd loses a minority", etcd::minority_lost),
    ("etcd loses its majority", etcd::majority_lost),
    ("a region is cut off", region::cut_off),
    ("a replica loses its disk", replica::wiped),
    ("the clock of a replica jumps", clock::jumps),
    ("the disk of a replica is full", replica::full_disk),
    ("a watcher is slow", slow::watcher),
    ("the root restarts below a crowd", root::restarts),
    ("a burst of updates comes", rush::burst_of_updates),
    ("history is compacted under sleepers", rush::history_compacted),
];
