//! A replica with many readers restarts. Their reconnects are spread over time, and none is refused.

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
    processes::Processes,
    support::{BOUND, Memory, prefix},
};

/// Number of readers, unless the environment variable sets another.
const READERS: usize = 200;
const READERS_FROM: &str = "FAIRMESH_RECONNECT_READERS";
/// The downtime of the replica.
const DOWNTIME: Duration = Duration::from_secs(1);
/// Window in which reconnects of all readers would count as a storm.
const BURST_WINDOW: Duration = Duration::from_millis(100);

/// Last state of a reader, and the number of snapshots that it received.
#[derive(Clone, Copy, Debug, Default)]
struct ReaderState {
    revision: u64,
    snapshots: usize,
    returned: bool,
}

struct Recorder(watch::Sender<ReaderState>);

impl Sink for Recorder {
    fn update(&mut self, update: Update) {
        self.0.send_modify(|got| {
            assert!(got.revision <= update.revision.number, "back from {got:?} to {}", update.revision);
            got.revision = update.revision.number;
            got.snapshots += update.snapshots.len();
            got.returned |= !update.resumed.is_empty();
        });
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        panic!("{prefix} was refused: {reason}");
    }
}

struct Reader {
    handle: FollowerHandle,
    got: watch::Receiver<ReaderState>,
}

impl Reader {
    /// Starts a reader with the backoff used in production.
    fn start(address: &fairmesh_wire::transport::Address, number: usize) -> Self {
        let config = FollowerConfig {
            transport: Default::default(),
            addresses: vec![address.clone()],
            software: format!("agent {number}"),
            backoff: Backoff::default(),
            refuse_lagging: true,
        };
        let (sender, got) = watch::channel(ReaderState::default());
        let handle = Follower::spawn(config, Recorder(sender));
        handle.subscribe(prefix("/a/"));
        Self { handle, got }
    }

    async fn until(&self, wanted: impl Fn(&ReaderState) -> bool) -> ReaderState {
        *timeout(3 * BOUND, self.got.clone().wait_for(wanted)).await.expect("the state is reached").unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_reconnect_at_spread_times_after_replica_restart() {
    let readers = env::var(READERS_FROM).ok().and_then(|text| text.parse().ok()).unwrap_or(READERS);
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let control = processes.control("control", &memory).await;
    let upstream = [control.address.clone()];
    let replica = processes.replica("replica", &upstream).await;
    let readers: Vec<_> = (0..readers).map(|number| Reader::start(&replica.address, number)).collect();
    for reader in &readers {
        reader.until(|got| got.snapshots == 1).await;
    }
    replica.stop().await;
    // As long as a restart takes. Meanwhile every reader fails to connect.
    sleep(DOWNTIME).await;
    memory.put(&[("/a/1", "y")]);
    let replica = processes.replica("replica", &upstream).await;

    let began = Instant::now();
    let returned: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let mut waiting = tokio::task::JoinSet::new();
    for reader in &readers {
        let (mut got, returned) = (reader.got.clone(), returned.clone());
        waiting.spawn(async move {
            timeout(3 * BOUND, got.wait_for(|got| got.returned)).await.expect("it has reconnected").unwrap();
            returned.lock().unwrap().push(began.elapsed());
        });
    }
    waiting.join_all().await;
    for reader in &readers {
        let got = reader.until(|got| got.revision == 2).await;
        assert_eq!(got.snapshots, 1, "only the missed changes: {got:?}");
        assert!(reader.handle.state().borrow().connected);
    }
    let mut returned = std::mem::take(&mut *returned.lock().unwrap());
    returned.sort();
    let burst = (0..returned.len())
        .map(|i| returned[i..].iter().take_while(|at| **at < returned[i] + BURST_WINDOW).count());
    let burst = burst.max().unwrap_or_default();
    let (half, all) = (returned[returned.len() / 2], returned[returned.len() - 1]);
    println!(
        "{} readers: half are back after {half:?}, all after {all:?}, at most {burst} within {BURST_WINDOW:?}",
        returned.len()
    );
    assert!(
        burst < returned.len() / 2,
        "{burst} of {} came back within {BURST_WINDOW:?}: {returned:?}",
        returned.len()
    );
    replica.stop().await;
    control.stop().await;
}
