//! Replicas that share an address: machines are network namespaces, and a router spreads connections over them.

mod fleet;

use std::{collections::BTreeSet, time::Duration};

use fairmesh_test_support::{alone, eventually_async as until};
use futures_util::future::join_all;
use rustix::process::Signal;
use tokio::time::Instant;

use self::fleet::{Fleet, Flow};

/// Connections at the end of all changes.
const FLOWS: usize = 1_000;
/// Times that replicas are added, and that one is taken away.
const ROUNDS: u8 = 3;
/// Time in which the connections of a replica end that crashes.
const RESET: Duration = Duration::from_secs(1);

/// Exchanges bytes on all connections. Returns the positions of the broken ones.
async fn broken(flows: &mut [Flow]) -> BTreeSet<usize> {
    let exchanged = join_all(flows.iter_mut().map(Flow::exchange)).await;
    exchanged.into_iter().enumerate().filter(|(_, result)| result.is_err()).map(|(at, _)| at).collect()
}

#[tokio::test]
#[ignore = "a replica that stops ends idle upgraded connections after seconds, as any drain does"]
async fn open_connections_stay_while_replicas_come_go_and_crash() {
    let _alone = alone().await;
    let Some(mut fleet) = Fleet::start("flows").await else { return };
    let mut flows = fleet.open(FLOWS / 2).await;
    assert_eq!(broken(&mut flows).await, BTreeSet::new());
    for round in 0..ROUNDS {
        fleet.add(round + 3).await;
        flows.extend(fleet.open(FLOWS / 8).await);
        assert_eq!(broken(&mut flows).await, BTreeSet::new(), "with replica {}", round + 3);
        fleet.stop(round + 1).await;
        flows.extend(fleet.open(FLOWS / 24).await);
        assert_eq!(
            broken(&mut flows).await,
            BTreeSet::new(),
            "after replica {} stopped accepting",
            round + 1
        );
    }
    flows.extend(fleet.open(FLOWS - flows.len()).await);
    let held = fleet.held().await;
    assert_eq!(held.iter().map(|(_, count)| count).sum::<usize>(), FLOWS, "{held:?}");
    assert!(held.iter().all(|(_, count)| *count > 10), "each of the five has some: {held:?}");
    crash(&mut fleet, &mut flows).await;
    cut(&mut fleet, &mut flows).await;
    // What is left ends by the deadline of the replicas that stop, or here.
    drop(flows);
}

/// A process crashes: its own connections end, and packets of others that the router sends to its machine are still passed on.
async fn crash(fleet: &mut Fleet, flows: &mut Vec<Flow>) {
    let held = fleet.held().await.into_iter().find(|(number, _)| *number == 4).unwrap().1;
    let crashed = Instant::now();
    fleet.kill(4).await;
    let ended = join_all(flows.iter_mut().map(|flow| flow.ends_by(crashed + RESET))).await;
    assert_eq!(
        ended.iter().filter(|has_ended| **has_ended).count(),
        held,
        "its own connections, and no other"
    );
    let mut has_ended = ended.into_iter();
    flows.retain(|_| !has_ended.next().unwrap());
    assert_eq!(broken(flows).await, BTreeSet::new());
    let mut later = fleet.open(20).await;
    assert_eq!(broken(&mut later).await, BTreeSet::new(), "new connections go to the next replica");
    flows.extend(later);
    fleet.restart(4).await;
    assert_eq!(broken(flows).await, BTreeSet::new(), "with the redirector of its successor");
}

/// A machine is cut off: its own connections are reset by others as soon as something is sent on them.
async fn cut(fleet: &mut Fleet, flows: &mut [Flow]) {
    let held = fleet.held().await.into_iter().find(|(number, _)| *number == 5).unwrap().1;
    let cut = Instant::now();
    fleet.cut(5);
    let reset = join_all(flows.iter_mut().map(|flow| flow.is_reset_by(cut + RESET))).await;
    assert_eq!(reset.iter().filter(|is_reset| **is_reset).count(), held, "its own connections, and no other");
}

#[tokio::test]
async fn entry_is_shown_and_leaves_nothing_behind() {
    let Some(mut fleet) = Fleet::start("shown").await else { return };
    let before = fleet.begun().await;
    let mut flows = fleet.open(40).await;
    assert_eq!(fleet.begun().await - before, 40);
    until("gateway status shows both replicas", async || {
        let status = fleet.mesh.cli(&["gateway", "status", "--json"], "").await.json();
        let entries = status[0]["entry"].as_array().cloned().unwrap_or_default();
        let share: f64 = entries.iter().filter_map(|one| one["share"].as_f64()).sum();
        entries.len() == 2 && (0.99..=1.0).contains(&share)
    })
    .await;
    let text = fleet.mesh.cli(&["gateway", "status"], "").await.ok();
    assert!(text.contains("10.99.0.1:7440") && text.contains("PASSED ON/S"), "{text}");
    fleet.succeed(1).await;
    assert_eq!(broken(&mut flows).await, BTreeSet::new(), "those of the predecessor, too");
    let mut later = fleet.open(20).await;
    assert_eq!(broken(&mut later).await, BTreeSet::new());
    drop((flows, later));
    fleet.predecessor_ends().await;
    fleet.list_none().await;
    for number in [1, 2] {
        assert_eq!(fleet.pins().len(), 3 - usize::from(number));
        fleet.end(number, Signal::TERM).await;
    }
    assert_eq!(fleet.pins(), Vec::<std::path::PathBuf>::new());
}
