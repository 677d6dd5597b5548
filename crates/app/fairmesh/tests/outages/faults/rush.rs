//! More changes at once than any component keeps in its history.

use rustix::process::Signal;

use crate::harness::{Suite, burst, now};

pub(super) fn burst_of_updates(suite: &Suite) -> String {
    let (updates, took) = burst(suite);
    suite.goes_on();
    format!("{updates} updates were acknowledged within {:.1} s", took.as_secs_f64())
}

/// An agent and the standby control plane are stopped while changes are written and then forgotten: etcd compacts its
/// history, and the agent's replica loses its disk. Then the serving control plane dies, and the stopped one takes
/// over.
pub(super) fn history_compacted(suite: &Suite) -> String {
    let fleet = &suite.fleet;
    let serving = fleet.serving();
    let (active, standby, agent) =
        (&fleet.controls[serving], &fleet.controls[1 - serving], &fleet.agents[1].daemon);
    let watcher = suite.users.watchers.iter().find(|watcher| watcher.name == "below replica us").unwrap();
    let snapshots = watcher.snapshots();
    agent.signal(Signal::STOP);
    standby.signal(Signal::STOP);
    burst(suite);
    fleet.etcd.compact();
    fleet.us.lose_disk();
    suite.until("what follows the replica has everything anew", || watcher.snapshots() > snapshots);
    agent.signal(Signal::CONT);
    standby.signal(Signal::CONT);
    suite.goes_on();
    active.kill();
    let killed = now();
    suite.goes_on();
    let took = killed.elapsed();
    active.revive();
    assert_eq!(fleet.serving(), 1 - serving, "the one that slept serves");
    format!("writes went on {:.1} s after the death of the control plane", took.as_secs_f64())
}
