//! etcd members that die.

use std::time::Duration;

use crate::harness::{Suite, now};

/// How long members stay down in the short form.
const AWAY: Duration = Duration::from_secs(2);

pub(super) fn leader_killed(suite: &Suite) -> String {
    let etcd = &suite.fleet.etcd;
    let leader = etcd.leader();
    let daemon = &etcd.members[leader].daemon;
    daemon.kill();
    let killed = now();
    suite.writes_go_on();
    let told = format!("writes went on {:.1} s after it", killed.elapsed().as_secs_f64());
    daemon.revive();
    etcd.is_whole();
    told
}

pub(super) fn minority_lost(suite: &Suite) -> String {
    let etcd = &suite.fleet.etcd;
    let leader = etcd.leader();
    let follower = &etcd.members[(leader + 1) % etcd.members.len()].daemon;
    follower.kill();
    let before = suite.users.recorder.acknowledged();
    suite.last(AWAY);
    suite.goes_on();
    let written = suite.users.recorder.acknowledged() - before;
    follower.revive();
    etcd.is_whole();
    format!("{written} batches were written without it")
}

pub(super) fn majority_lost(suite: &Suite) -> String {
    let etcd = &suite.fleet.etcd;
    let leader = etcd.leader();
    let lost = [leader, (leader + 1) % etcd.members.len()].map(|number| &etcd.members[number].daemon);
    lost.iter().for_each(|member| member.kill());
    let before = suite.users.recorder.acknowledged();
    suite.last(AWAY);
    suite.calls_go_on();
    let written = suite.users.recorder.acknowledged() - before;
    // Only batches already replicated when the second member died may be acknowledged.
    assert!(written < 20, "{written} batches were acknowledged by one member of three");
    lost.iter().for_each(|member| member.revive());
    let back = now();
    suite.writes_go_on();
    etcd.is_whole();
    format!("writes went on {:.1} s after it was back", back.elapsed().as_secs_f64())
}
