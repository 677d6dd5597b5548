//! The root replica restarts below a crowd of agents.

use std::{thread::sleep, time::Duration};

use fairmesh_model::Prefix;

use crate::harness::{Crowd, Suite, now};

/// Number of agents in the long form. All agents share the processors with the root here. Without optimisation, on a
/// busy machine, they would time out faster than the root can answer, so the long form is compiled with optimisation.
const AGENTS: usize = 2000;
const AGENTS_SHORT: usize = 200;
/// Number of agents that start to follow at a time.
const TOGETHER: usize = 100;
/// How long the root stays away: as long as a restart by the service manager.
const AWAY: Duration = Duration::from_secs(1);
/// Window in which the return of all agents would be a stampede.
const AT_ONCE: Duration = Duration::from_millis(100);

pub(super) fn restarts(suite: &Suite) -> String {
    let (root, agents) = (&suite.fleet.root, if suite.is_long() { AGENTS } else { AGENTS_SHORT });
    let quiet = Prefix::new("/t/quiet/services/").unwrap();
    let mut crowd = Crowd::new(suite.fleet.desk.runtime(), root.address(), quiet);
    // Starts a few agents at a time: only their return is under test.
    for _ in 0..agents / TOGETHER {
        crowd.grow(TOGETHER);
        suite.until("all agents follow", || crowd.seen().iter().all(|seen| seen.snapshots == 1));
    }
    let keys = crowd.seen()[0].keys.len();
    root.daemon.kill();
    suite.fleet.apply(&format!("{{kind: Service, name: quiet/service-{keys}}}"));
    sleep(AWAY);
    root.daemon.revive();
    suite.until("the root is back", || root.metric("fairmesh_replica_connected") == Some(1.0));
    let back = now();
    suite.until("all agents have what they missed", || {
        crowd.seen().iter().all(|seen| seen.last_back.is_some() && seen.keys.len() > keys)
    });
    for (number, seen) in crowd.seen().into_iter().enumerate() {
        assert_eq!(seen.snapshots, 1, "agent {number} was sent everything anew: {seen:?}");
        assert!(!seen.backwards, "agent {number} went back");
    }
    let (returned, most) = crowd.returns(back, AT_ONCE);
    assert!(most < agents / 2, "{most} of {agents} agents came back within {AT_ONCE:?}");
    format!(
        "of {agents} agents half were back after {:.1} s, all after {:.1} s, at most {most} within {AT_ONCE:?}, none with a \
         snapshot",
        returned[agents / 2].as_secs_f64(),
        returned[agents - 1].as_secs_f64()
    )
}
