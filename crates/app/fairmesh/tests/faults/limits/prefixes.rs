//! Watches with many long prefixes.

use std::time::Duration;

use fairmesh_wire::{
    transport::Transport,
    v1::{Subscribe, WatchRequest, watch_request::Kind},
    watch::Watch,
};
use tokio::{task::JoinSet, time::timeout};

use super::fleet::{Fleet, connection, metric, read};
use crate::{
    attacks::memory,
    harness::{alone, until},
};

const WATCHES: usize = 20;
const PREFIXES: usize = 4096;

/// Subscribes to prefixes of 460 bytes and reads all updates.
async fn watch(to: &str, number: usize) {
    let address = to.parse().unwrap();
    let mut watch = Watch::open(&Transport::default(), &address, "greedy").await.unwrap();
    for prefix in 0..PREFIXES {
        let prefix = format!("/{number}-{prefix}-{}/", "p".repeat(450));
        let subscribe = Subscribe { prefix, ..Subscribe::default() };
        watch.send(&WatchRequest { kind: Some(Kind::Subscribe(subscribe)) });
    }
    while watch.next().await.is_ok() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_watches_free_memory_of_their_followed_prefixes() {
    let _machine = alone().await;
    let fleet = Fleet::start(None).await;
    let idle = memory(&fleet.control);
    let followed = async || metric(&fleet.control_http, "fairmesh_control_followed_prefixes").await;
    let mut watches = JoinSet::new();
    for number in 0..WATCHES {
        let to = fleet.control_grpc.clone();
        watches.spawn(async move { watch(&to, number).await });
    }
    until("they follow all", async || followed().await >= (WATCHES * PREFIXES) as f64).await;
    let most = memory(&fleet.control);
    let honest = connection(&fleet.control_grpc).await;
    timeout(Duration::from_secs(5), read(&honest)).await.expect("others are served").unwrap();
    watches.shutdown().await;
    until("their memory is returned", async || memory(&fleet.control) < idle + idle / 2).await;
    println!("{} MB, with the watches {} MB", idle >> 20, most >> 20);
    assert!(most > idle + idle / 2, "the watches took memory");
}
