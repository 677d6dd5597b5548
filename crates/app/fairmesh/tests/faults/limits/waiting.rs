//! Calls that wait after their request has arrived completely.

use std::time::Duration;

use fairmesh_wire::v1;
use tokio::{task::JoinSet, time::timeout};

use super::{
    fleet::{Fleet, connection, metric},
    unfinished::large,
};
use crate::harness::{beside_others, until};

const REFUSED: &str = "fairmesh_control_listener_requests_refused_total{listener=\"grpc\",reason=\"wait\"}";

/// A read request of two megabytes for a revision that never comes.
fn waiting(mut at: v1::Cursor) -> v1::ReadRequest {
    at.numbers.values_mut().for_each(|number| *number += 1_000_000);
    v1::ReadRequest { prefixes: (0..4096).map(|n| format!("/{n:0>500}")).collect(), at_least: Some(at) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_wait_for_revision_leave_memory_to_other_calls() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let honest = connection(&fleet.control_grpc).await;
    let read = v1::ReadRequest { prefixes: vec!["/topology/".into()], at_least: None };
    let at = honest.rib().read(read).await.unwrap().into_inner().at.unwrap();
    let mut attack = JoinSet::new();
    for _ in 0..4 {
        let connection = connection(&fleet.control_grpc).await;
        for _ in 0..8 {
            let (connection, at) = (connection.clone(), at.clone());
            attack.spawn(async move {
                loop {
                    connection.rib().read(waiting(at.clone())).await.unwrap_err();
                }
            });
        }
    }
    until("reads fill the memory of incomplete requests", async || {
        metric(&fleet.control_http, "fairmesh_control_incomplete_requests_bytes").await > f64::from(56 << 20)
    })
    .await;
    until("a read that waited was refused", async || {
        let written = timeout(Duration::from_secs(10), honest.rib().write(large())).await;
        let status = written.expect("an honest write is held up").unwrap_err();
        assert_eq!(
            status.code(),
            tonic::Code::InvalidArgument,
            "it arrived, and is refused for what it says: {status}"
        );
        metric(&fleet.control_http, REFUSED).await >= 1.0
    })
    .await;
    attack.shutdown().await;
}
