//! Follows the routing information base of another process (a control plane, a replica or an agent), or of a node in
//! this process.

mod ack_batcher;
mod assembler;
mod failover;
mod freshness;
#[cfg(feature = "node")]
mod node_follower;
mod refusal_retry;
#[cfg(feature = "node")]
mod relay_acks;
mod subscriptions;
mod task;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Location, Prefix, Revision, StoreId, arith::mix64};
use fairmesh_wire::{
    handshake::Connection,
    transport::{Address, Transport},
};
#[cfg(feature = "node")]
use node_follower::NodeFollower;
use task::FollowerTask;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use ack_batcher::AckBatcher;
pub use freshness::Freshness;
#[cfg(feature = "node")]
pub use relay_acks::relay_acks;

#[cfg(feature = "node")]
use crate::Node;
use crate::{PeerInfo, Update};

/// The upstreams to follow, and parameters for following them.
#[derive(Clone, Debug)]
pub struct FollowerConfig {
    /// Addresses of upstreams, tried in turn; at least one. If there are several, the follower leaves a stale
    /// upstream after some seconds.
    pub addresses: Vec<Address>,
    /// Transport for connections to upstreams.
    pub transport: Transport,
    /// Name of this process, shown to operators, such as `agent host-7`.
    pub software: String,
    /// Backoff between connection attempts.
    pub backoff: Backoff,
    /// Whether to leave an upstream whose revision is older than one seen before. Processes that serve revisions to
    /// others need this. Other processes prefer an old copy, for example from an agent's disk, to none. In either
    /// case, the copy of a single prefix never goes back to an older revision.
    pub refuse_lagging: bool,
}

/// Pauses between attempts: random, up to a bound that doubles with every failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The bound after the first failure.
    pub first: Duration,
    /// Maximum of the bound.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), longest: Duration::from_secs(5) }
    }
}

/// Receives the messages of an upstream, in order and from one task. Implementations must not block.
pub trait Sink: Send + 'static {
    /// Whether decisions use an update as soon as [`Sink::update`] returns. The follower then acknowledges it, and
    /// [`FollowerHandle::ack`] is not needed.
    const APPLIES_AT_ONCE: bool = false;

    /// Delivers all changes up to `update.revision`, which must be applied as one change. Acknowledge the revision
    /// with [`FollowerHandle::ack`] once decisions use it: drains and shard moves wait for a follower that does not.
    ///
    /// A revision of another store invalidates all current data. Later updates deliver the parts that are missing in
    /// this update.
    fn update(&mut self, update: Update);

    /// Called if the upstream does not serve this prefix, and again if its reason changes. The prefix is requested again
    /// within seconds, because the reason may be that the processes of this machine are starting; a lasting refusal is
    /// logged as a warning.
    fn refused(&mut self, prefix: &Prefix, reason: &str);

    /// Called if the upstream lost its own upstream. The copy is at most `age` old, and ages from now on. Zero means
    /// that the copy is current again.
    fn age_update(&mut self, _age: Duration) {}

    /// Called when the connection is lost. The copy ages from now on.
    fn disconnected(&mut self) {}

    /// Whether [`Sink::patch_base`] returns values exactly as sent by the upstream. Large values with small changes
    /// are then sent as patches.
    const TAKES_PATCHES: bool = false;

    /// Returns the value of a key as last sent by the upstream; `None` if there is none or it is unavailable.
    fn patch_base(&self, _key: &str) -> Option<Bytes> {
        None
    }
}

/// Time limit of [`FollowerHandle::close`].
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// State of the connection to the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerState {
    /// Whether the connection is established, including its handshake.
    pub connected: bool,
    /// Time at which `connected` last changed.
    pub since: Instant,
    /// Number of consecutive failed attempts when the last attempt began or ended.
    pub failures: u32,
    /// Location of the upstream, from its last handshake. Only agents send theirs.
    pub location: Option<Location>,
    /// Store of the upstream, from its last handshake.
    pub store: Option<StoreId>,
    /// Address of the last attempt or connection.
    pub address: Option<Address>,
    /// Reason why the last attempt or connection ended, shown to operators.
    pub error: Option<String>,
}

/// Controls a follower. Dropping the last clone ends the connection.
#[derive(Clone, Debug)]
pub struct FollowerHandle {
    desired: Arc<Desired>,
    state: watch::Receiver<FollowerState>,
    connection: watch::Receiver<Option<Connection>>,
    ack_requested: watch::Receiver<Option<Revision>>,
    closing: CancellationToken,
    retry: watch::Sender<()>,
    _alive: Arc<DropGuard>,
}

/// Connects to upstreams, subscribes, and reconnects.
#[derive(Debug)]
pub struct Follower;

/// Desired subscriptions. A notification of `changed` starts reconciliation with the requested subscriptions. Desired
/// subscriptions are a state and not a queue, so that an owner faster than the connection costs no memory.
#[derive(Debug, Default)]
struct Desired {
    subscriptions: Mutex<DesiredSubscriptions>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct DesiredSubscriptions {
    prefixes: BTreeMap<Prefix, DesiredSubscription>,
    /// Prefixes changed since the last reconciliation. `None` if the current connection has had no reconciliation
    /// yet, and must compare all prefixes.
    changed: Option<BTreeSet<Prefix>>,
    ack: Option<Revision>,
    peer: Option<PeerInfo>,
    /// Number of changes to the desired prefixes.
    changes: u64,
}

/// A desired prefix. Unsubscribing and subscribing again assigns another number, because the copy is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DesiredSubscription {
    number: u64,
    /// Boxed, because most prefixes have no copy when they are subscribed.
    held: Option<Box<Revision>>,
}

impl Follower {
    /// Starts a follower in the current runtime.
    pub fn spawn(config: FollowerConfig, sink: impl Sink) -> FollowerHandle {
        let desired = Arc::new(Desired::default());
        let alive = CancellationToken::new();
        let (state, watched) = watch::channel(FollowerState::new());
        let (connection, connected) = watch::channel(None);
        let (ack_request, ack_requested) = watch::channel(None);
        let closing = CancellationToken::new();
        let (retry, retried) = watch::channel(());
        let signals = (closing.clone(), retried);
        let task = FollowerTask::new(config, sink, desired.clone(), ack_request, signals);
        tokio::spawn(task.run(state, connection, alive.clone()));
        FollowerHandle {
            desired,
            state: watched,
            connection: connected,
            ack_requested,
            closing,
            retry,
            _alive: Arc::new(alive.drop_guard()),
        }
    }

    /// Follows a node in this process. The node counts as an upstream that is always connected.
    #[cfg(feature = "node")]
    pub fn spawn_local(node: &Node, software: &str, sink: impl Sink) -> FollowerHandle {
        // The first reconciliation is already done: there is no earlier state to compare with.
        let subscriptions =
            DesiredSubscriptions { changed: Some(BTreeSet::new()), ..DesiredSubscriptions::default() };
        let desired = Arc::new(Desired { subscriptions: Mutex::new(subscriptions), changed: Notify::new() });
        let alive = CancellationToken::new();
        let (state, watched) =
            watch::channel(FollowerState { connected: true, store: node.store(), ..FollowerState::new() });
        let follower = NodeFollower::new(node, software, sink, desired.clone());
        let closing = CancellationToken::new();
        tokio::spawn(follower.run(state, alive.clone(), closing.clone()));
        FollowerHandle {
            desired,
            closing,
            state: watched,
            connection: watch::channel(None).1,
            ack_requested: watch::channel(None).1,
            retry: watch::Sender::default(),
            _alive: Arc::new(alive.drop_guard()),
        }
    }
}

impl FollowerHandle {
    /// Sets the description of this process for upstreams. It is sent on this and every later connection.
    pub fn set_peer_info(&self, info: PeerInfo) {
        self.desired.lock().peer = Some(info);
        self.desired.changed.notify_one();
    }

    /// Follows a prefix. Following a prefix twice is not an error.
    pub fn subscribe(&self, prefix: Prefix) {
        self.follow([(prefix, None)]);
    }

    /// Follows several prefixes, which are requested together.
    pub fn subscribe_all(&self, prefixes: impl IntoIterator<Item = Prefix>) {
        self.follow(prefixes.into_iter().map(|prefix| (prefix, None)));
    }

    /// Follows prefixes, resuming from copies at the given revisions. They are requested together: a process that
    /// serves revisions to others then gets the missed changes of all prefixes as one change.
    pub fn subscribe_from(&self, held: impl IntoIterator<Item = (Prefix, Revision)>) {
        self.follow(held.into_iter().map(|(prefix, revision)| (prefix, Some(revision))));
    }

    /// Stops following a prefix.
    pub fn unsubscribe(&self, prefix: &Prefix) {
        let mut wanted = self.desired.lock();
        wanted.changes += 1;
        wanted.prefixes.remove(prefix);
        wanted.mark_changed(prefix);
        drop(wanted);
        self.desired.changed.notify_one();
    }

    /// Acknowledges all revisions up to `revision`: decisions use it from now on. The acknowledgement is sent within
    /// a second, or at once if the upstream requested it.
    pub fn ack(&self, revision: Revision) {
        self.desired.ack(revision);
    }

    /// Ends the connection for good. Tells the upstream that decisions no longer use its records, so that it does not
    /// wait for a reconnect. Only for processes that do not serve their copy to others. Returns within a second, even
    /// if the upstream cannot be reached.
    pub async fn close(&self) {
        self.closing.cancel();
        let mut state = self.state.clone();
        // The wait returns an error once the task has ended.
        let ended = async { while state.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended).await;
    }

    /// Ends the backoff after a failure and connects at once. Has no effect on an established connection.
    pub fn retry(&self) {
        self.retry.send_replace(());
    }

    /// Returns a receiver of the latest revision that the upstream asked to acknowledge.
    pub(crate) fn ack_requested(&self) -> watch::Receiver<Option<Revision>> {
        self.ack_requested.clone()
    }

    /// Returns a receiver of the connection state.
    pub fn state(&self) -> watch::Receiver<FollowerState> {
        self.state.clone()
    }

    /// Returns a second connection to the same process, for other calls; `None` while disconnected.
    pub fn connection(&self) -> Option<Connection> {
        self.connection.borrow().clone()
    }

    /// Waits until there is a connection, and returns it. Stays pending forever if the follower has ended.
    pub async fn connected(&self) -> Connection {
        let mut connection = self.connection.clone();
        match connection.wait_for(Option::is_some).await.map(|connection| connection.clone()) {
            Ok(Some(connection)) => connection,
            // The follower has ended; `wait_for` never returns `None`.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn follow(&self, prefixes: impl IntoIterator<Item = (Prefix, Option<Revision>)>) {
        let mut wanted = self.desired.lock();
        wanted.changes += 1;
        let number = wanted.changes;
        for (prefix, held) in prefixes {
            wanted.mark_changed(&prefix);
            let held = held.map(Box::new);
            wanted.prefixes.entry(prefix).or_insert(DesiredSubscription { number, held });
        }
        drop(wanted);
        self.desired.changed.notify_one();
    }
}

impl Desired {
    fn lock(&self) -> MutexGuard<'_, DesiredSubscriptions> {
        // No code under this lock panics.
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ack(&self, revision: Revision) {
        self.lock().ack = Some(revision);
        self.changed.notify_one();
    }
}

impl FollowerState {
    fn new() -> Self {
        let since = Instant::now();
        Self { connected: false, since, failures: 0, location: None, store: None, address: None, error: None }
    }
}

impl DesiredSubscriptions {
    fn mark_changed(&mut self, prefix: &Prefix) {
        if let Some(changed) = &mut self.changed {
            changed.insert(prefix.clone());
        }
    }
}

impl Backoff {
    /// Returns the pause after `failures` consecutive failures: uniform up to the bound, so that a fleet that lost
    /// its upstream at the same moment does not reconnect at the same moment. `random` may be any number.
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let bound = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(random % nanos.saturating_add(1).max(1))
    }
}

/// Returns a random number, with which processes of a fleet spread their actions over time.
pub fn random() -> u64 {
    mix64(RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnect_backoff_is_uniform_below_bound_that_doubles_to_maximum() {
        let backoff = Backoff::default();
        let longest = |failures| (0..1000).map(|i| backoff.delay(failures, i * 7_919_000_017)).max().unwrap();
        assert!(longest(1) <= Duration::from_millis(50) && longest(1) > Duration::from_millis(45));
        assert!(longest(2) <= Duration::from_millis(100) && longest(2) > Duration::from_millis(90));
        assert!(longest(60) <= Duration::from_secs(5) && longest(60) > Duration::from_millis(4500));
        assert_eq!(backoff.delay(9, 0), Duration::ZERO);
    }
}
