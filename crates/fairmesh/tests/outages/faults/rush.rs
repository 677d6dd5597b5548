//! More changes at once than anybody remembers.

use rustix::process::Signal;

use crate::harness::{Suite, burst, now};

pub(super) fn hundred_thousand(suite: &Suite) -> String {
    let took = burst(suite);
    suite.goes_on();
    format!("100,000 updates were acknowledged within {:.1} s", took.as_secs_f64())
}

/// An agent and the control plane that stands by sleep while history is written and compacted; then the one that serves
/// dies, and what slept takes over.
pub(super) fn history_compacted(suite: &Suite) -> String {
    let fleet = &suite.fleet;
    let serving = fleet.serving().expect("one control plane serves");
    let (active, standby, agent) =
        (&fleet.controls[serving], &fleet.controls[1 - serving], &fleet.agents[1].daemon);
    let watcher = suite.watchers.iter().find(|watcher| watcher.name == "below agent us").unwrap();
    let snapshots = watcher.snapshots();
    agent.signal(Signal::STOP);
    standby.signal(Signal::STOP);
    burst(suite);
    fleet.etcd.compact();
    agent.signal(Signal::CONT);
    standby.signal(Signal::CONT);
    suite.goes_on();
    active.kill();
    let killed = now();
    suite.goes_on();
    let took = killed.elapsed();
    active.revive();
    assert_eq!(fleet.serving(), Some(1 - serving), "the one that slept serves");
    format!(
        "the agent's watcher was sent {} snapshots; writes went on {:.1} s after the death of the control plane",
        watcher.snapshots() - snapshots,
        took.as_secs_f64()
    )
}
