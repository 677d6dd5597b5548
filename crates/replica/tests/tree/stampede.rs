//! A replica restarts under many readers: they come back over a while and not at once, and none is turned away.

use std::{
    env,
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_model::Prefix;
use fairmesh_rib::{
    Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    forest::Forest,
    support::{BOUND, Memory, prefix},
};

/// How many readers there are unless the environment says otherwise.
const READERS: usize = 200;
const READERS_FROM: &str = "FAIRMESH_STAMPEDE_READERS";
/// How long the replica is away.
const AWAY: Duration = Duration::from_secs(1);
/// A while in which all of them together would be a stampede.
const AT_ONCE: Duration = Duration::from_millis(100);

/// What one reader got last, and how many snapshots in all.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    revision: u64,
    snapshots: usize,
    back: bool,
}

struct Note(watch::Sender<Got>);

impl Sink for Note {
    fn update(&mut self, update: Update) {
        self.0.send_modify(|got| {
            assert!(got.revision <= update.revision.number, "back from {got:?} to {}", update.revision);
            got.revision = update.revision.number;
            got.snapshots += update.snapshots.len();
            got.back |= !update.resumed.is_empty();
        });
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        panic!("{prefix} was refused: {reason}");
    }
}

struct Reader {
    handle: FollowerHandle,
    got: watch::Receiver<Got>,
}

impl Reader {
    /// With the waits of production.
    fn start(address: &fairmesh_wire::transport::Address, number: usize) -> Self {
        let config = FollowerConfig {
            addresses: vec![address.clone()],
            software: format!("agent {number}"),
            backoff: Backoff::default(),
            refuse_lagging: true,
        };
        let (sender, got) = watch::channel(Got::default());
        let handle = Follower::spawn(config, Note(sender));
        handle.subscribe(prefix("/a/"));
        Self { handle, got }
    }

    async fn until(&self, wanted: impl Fn(&Got) -> bool) -> Got {
        *timeout(3 * BOUND, self.got.clone().wait_for(wanted)).await.expect("it comes about").unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_replica_that_restarts_come_back_over_a_while_and_miss_nothing() {
    let readers = env::var(READERS_FROM).ok().and_then(|text| text.parse().ok()).unwrap_or(READERS);
    let forest = Forest::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let control = forest.control("control", &memory).await;
    let upstream = [control.address.clone()];
    let replica = forest.replica("replica", &upstream).await;
    let readers: Vec<_> = (0..readers).map(|number| Reader::start(&replica.address, number)).collect();
    for reader in &readers {
        reader.until(|got| got.snapshots == 1).await;
    }
    replica.stop().await;
    // As long as a restart takes: every reader tries in vain meanwhile.
    sleep(AWAY).await;
    memory.put(&[("/a/1", "y")]);
    let replica = forest.replica("replica", &upstream).await;

    let began = Instant::now();
    let back: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let mut waiting = tokio::task::JoinSet::new();
    for reader in &readers {
        let (mut got, back) = (reader.got.clone(), back.clone());
        waiting.spawn(async move {
            timeout(3 * BOUND, got.wait_for(|got| got.back)).await.expect("it is back").unwrap();
            back.lock().unwrap().push(began.elapsed());
        });
    }
    waiting.join_all().await;
    for reader in &readers {
        let got = reader.until(|got| got.revision == 2).await;
        assert_eq!(got.snapshots, 1, "what was missed is enough: {got:?}");
        assert!(reader.handle.state().borrow().connected);
    }
    let mut back = std::mem::take(&mut *back.lock().unwrap());
    back.sort();
    let at_once = (0..back.len()).map(|i| back[i..].iter().take_while(|at| **at < back[i] + AT_ONCE).count());
    let at_once = at_once.max().unwrap_or_default();
    let (half, all) = (back[back.len() / 2], back[back.len() - 1]);
    println!(
        "{} readers: half are back after {half:?}, all after {all:?}, at most {at_once} within {AT_ONCE:?}",
        back.len()
    );
    assert!(at_once < back.len() / 2, "{at_once} of {} came back within {AT_ONCE:?}: {back:?}", back.len());
    replica.stop().await;
    control.stop().await;
}
