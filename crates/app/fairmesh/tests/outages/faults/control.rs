//! A control plane whose store is a file, on a full disk.

use std::fs;

use fairmesh_wire::v1;

use crate::{
    checker::check,
    harness::{Suite, Users, now, registers},
};

const WRITERS: u64 = 3;
/// Least number of writes acknowledged before and after the fault.
const WRITES: u64 = 40;
/// A batch for which the file must grow: number of keys, and bytes per value.
const KEYS: u64 = 600;
const BYTES: usize = 2000;

pub(super) fn full_disk(suite: &Suite) -> String {
    let lone = &suite.fleet.lone;
    // Restarts with an empty disk, so that the history does not include the writes of an earlier run of this fault.
    lone.daemon.kill();
    lone.daemon.revive();
    let users = Users::start(suite.fleet.desk.runtime(), &[lone.address()], WRITERS);
    let goes_on = || {
        let goal = users.recorder.acknowledged() + WRITES;
        suite.until("writes are acknowledged", || users.recorder.acknowledged() >= goal);
    };
    goes_on();
    let ballast = lone.daemon.inside(&lone.data).join("ballast");
    let left = super::fill(&ballast);
    let refusal = large_write(&users).expect_err("there is no room");
    assert!(refusal.contains("the disk is full"), "{refusal}");
    let reads = users.recorder.reads();
    suite.until("reads go on", || users.recorder.reads() > reads + 5);
    fs::remove_file(&ballast).unwrap();
    let room = now();
    suite.until("there is room", || large_write(&users).is_ok());
    goes_on();
    let history = users.quiet().expect("it answers");
    let found = check(&history);
    assert!(found.is_empty(), "{found:#?}");
    let (batches, took) = (history.writes.len(), room.elapsed().as_secs_f64());
    format!(
        "the last {left} bytes were taken, and {batches} batches written in all, the last {took:.1} s after"
    )
}

/// Writes more than the file has free space for; returns the error.
fn large_write(users: &Users) -> Result<(), String> {
    let op = |key| v1::Op {
        key: registers::bulk_key(key),
        value: Some(registers::bulk_value(0, BYTES)),
        condition: None,
    };
    let (mut line, request) = (users.line(), v1::WriteRequest { ops: (0..KEYS).map(op).collect() });
    users.runtime.run(async move {
        let connection = loop {
            if let Some(connection) = line.get().await {
                break connection;
            }
        };
        let answer = connection.rib().write(request).await;
        answer.map(drop).map_err(|status| status.message().to_owned())
    })
}

/// The serving control plane loses etcd, while all other components still reach the control plane. Once another may
/// have taken over, the control plane serves no reads, and its followers reconnect to the other.
pub(super) fn cut_off_from_etcd(suite: &Suite) -> String {
    let fleet = &suite.fleet;
    let serving = fleet.serving();
    let reach = |reached| {
        let host = &fleet.control_hosts[serving];
        fleet.etcd.members.iter().for_each(|member| host.reach(&member.host, reached));
    };
    let ends = fleet.controls[serving].ends();
    let cut = now();
    reach(false);
    suite.goes_on();
    let took = cut.elapsed();
    let newest = suite.users.recorder.newest() as f64;
    suite.until("who followed it has what was written since, and knows that it is current", || {
        let current = fleet.root.metric("fairmesh_replica_revision").is_some_and(|at| at >= newest);
        current && fleet.root.metric("fairmesh_replica_data_age_seconds") == Some(0.0)
    });
    let turned = cut.elapsed();
    reach(true);
    suite.until("the one that was deposed has ended", || fleet.controls[serving].ends() > ends);
    let [took, turned] = [took, turned].map(|time| time.as_secs_f64());
    format!("writes went on {took:.1} s after, and the root followed the other within {turned:.1} s")
}
