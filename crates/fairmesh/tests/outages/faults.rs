//! What goes wrong, one file for each part that it goes wrong with.

pub(crate) mod clock;
mod etcd;

use crate::harness::Suite;

/// What goes wrong, and does it.
pub(crate) type Fault = (&'static str, fn(&Suite) -> String);

/// Everything that is made to go wrong, in the order of the short form.
pub(crate) const FAULTS: &[Fault] = &[
    ("the leader of etcd is killed", etcd::leader_killed),
    ("etcd loses a minority", etcd::minority_lost),
    ("etcd loses its majority", etcd::majority_lost),
];
