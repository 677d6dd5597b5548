//! A region that loses its connections to all other regions.

use std::time::Duration;

use crate::harness::{Place, Suite, now};

/// Length of the cut in the short form: longer than the first TCP retransmissions.
const CUT: Duration = Duration::from_secs(6);

pub(super) fn cut_off(suite: &Suite) -> String {
    let within = |watcher: &&crate::harness::Watcher| watcher.name.ends_with("eu");
    let watchers: Vec<_> = suite.users.watchers.iter().filter(within).collect();
    suite.fleet.network.connect(Place::Eu, false);
    suite.last(CUT);
    suite.goes_on();
    let (here, there) =
        (suite.users.watchers[0].at(), watchers.iter().map(|watcher| watcher.at()).max().unwrap());
    assert!(there < here, "the region is not cut off: it is at {there}, and the others at {here}");
    suite.fleet.network.connect(Place::Eu, true);
    let back = now();
    suite.until("the region has caught up", || watchers.iter().all(|watcher| watcher.at() >= here));
    format!(
        "it was {} revisions behind, and caught up {:.1} s after",
        here - there,
        back.elapsed().as_secs_f64()
    )
}
