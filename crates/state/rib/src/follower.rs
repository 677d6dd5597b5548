//! Follows the routing information base of another process (a control plane, a replica or an agent) or of a node in
//! this process.

mod ack_batcher;
mod assembler;
mod failover;
mod freshness;
#[cfg(feature = "node")]
mod node_follower;
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

/// Which upstreams to follow, and how.
#[derive(Clone, Debug)]
pub struct FollowerConfig {
    /// Addresses of upstreams, tried in turn; at least one. If there are several, an upstream that is itself stale is
    /// left after some seconds.
    pub addresses: Vec<Address>,
    /// How to connect to upstreams.
    pub transport: Transport,
    /// The name of this process, for operators: `agent host-7`.
    pub software: String,
    /// How long to wait between attempts.
    pub backoff: Backoff,
    /// Whether to leave an upstream whose revision is behind an earlier one. Processes that serve revisions to others
    /// need this. Other processes prefer an old copy, such as from an agent's disk, to none. A single prefix never
    /// goes backwards either way.
    pub refuse_lagging: bool,
}

/// Pauses between attempts: a random time up to a bound that doubles with every failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The bound after the first failure.
    pub first: Duration,
    /// The greatest bound.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), longest: Duration::from_secs(5) }
    }
}

/// Receives the messages of an upstream, in order from one task. Must not block.
pub trait Sink: Send + 'static {
    /// All changes up to `update.revision`, to be applied as one change. Acknowledge the revision with
    /// [`FollowerHandle::ack`] once decisions use it.
    ///
    /// A revision of another store invalidates all current data: later updates bring the parts that this update does
    /// not.
    fn update(&mut self, update: Update);

    /// The upstream does not serve this prefix. The prefix is requested again over the next connection.
    fn refused(&mut self, prefix: &Prefix, reason: &str);

    /// The upstream lost its own upstream: the copy is at most `age` old and ages from now on. Zero means that it is
    /// current again.
    fn age_update(&mut self, _age: Duration) {}

    /// The connection is lost: the copy ages from now on.
    fn disconnected(&mut self) {}

    /// Whether [`Sink::patch_base`] returns values as sent by the upstream. Large values with small changes are then
    /// sent as patches.
    const TAKES_PATCHES: bool = false;

    /// The value of a key as last sent by the upstream; `None` without one, or if it is unavailable.
    fn patch_base(&self, _key: &str) -> Option<Bytes> {
        None
    }
}

/// Time limit of [`FollowerHandle::close`].
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of the connection to the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerState {
    /// Whether the connection is established, including its handshake.
    pub connected: bool,
    /// When `connected` last changed.
    pub since: Instant,
    /// Consecutive failed attempts, as of the last attempt that began or ended.
    pub failures: u32,
    /// The location of the upstream, by its last handshake; only agents send theirs.
    pub location: Option<Location>,
    /// The store of the upstream, by its last handshake.
    pub store: Option<StoreId>,
    /// The address last attempted or connected.
    pub address: Option<Address>,
    /// Why the last attempt or connection ended, for operators.
    pub error: Option<String>,
}

/// Controls a follower; dropping the last clone ends the connection.
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

/// Connects, subscribes, and reconnects.
#[derive(Debug)]
pub struct Follower;

/// The desired subscriptions, reconciled with the requested ones whenever `changed` is notified. This is a state and
/// not a queue, so that an owner that is faster than the connection costs no memory.
#[derive(Debug, Default)]
struct Desired {
    subscriptions: Mutex<DesiredSubscriptions>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct DesiredSubscriptions {
    prefixes: BTreeMap<Prefix, DesiredSubscription>,
    /// Prefixes changed since the last reconciliation; `None` if the present connection has had none and compares
    /// all.
    changed: Option<BTreeSet<Prefix>>,
    ack: Option<Revision>,
    peer: Option<PeerInfo>,
    /// Number of changes of the prefixes.
    changes: u64,
}

/// A desired prefix. Subscribing again after unsubscribing gives another number, because the copy is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DesiredSubscription {
    number: u64,
    /// Boxed, since most prefixes have no copy when they are subscribed.
    held: Option<Box<Revision>>,
}

impl Follower {
    /// Starts a follower on the current runtime.
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

    /// Follows a node of this process, which counts as an upstream that is always connected.
    #[cfg(feature = "node")]
    pub fn spawn_local(node: &Node, software: &str, sink: impl Sink) -> FollowerHandle {
        // The first reconciliation is implied: there is no earlier state to compare with.
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
    /// Describes this process to upstreams, on this and every later connection, until changed.
    pub fn set_peer_info(&self, info: PeerInfo) {
        self.desired.lock().peer = Some(info);
        self.desired.changed.notify_one();
    }

    /// Follows a prefix. Following it twice is not an error.
    pub fn subscribe(&self, prefix: Prefix) {
        self.follow([(prefix, None)]);
    }

    /// Follows several prefixes, requested together.
    pub fn subscribe_all(&self, prefixes: impl IntoIterator<Item = Prefix>) {
        self.follow(prefixes.into_iter().map(|prefix| (prefix, None)));
    }

    /// Follows prefixes from copies at these revisions. They are requested together, so that a process that serves
    /// revisions to others gets the missed changes of all of them as one change.
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

    /// Acknowledges everything up to `revision`: decisions use it from now on. The acknowledgement is sent within a
    /// second, or at once if the upstream requested it.
    pub fn ack(&self, revision: Revision) {
        self.desired.lock().ack = Some(revision);
        self.desired.changed.notify_one();
    }

    /// Ends the connection for good, and tells the upstream that no decision uses its records any more, so that it does not
    /// wait for a reconnect. Only for a process that serves its copy to no other. Returns within a second, even if the
    /// upstream could not be reached.
    pub async fn close(&self) {
        self.closing.cancel();
        let mut state = self.state.clone();
        // The wait fails once the task has ended.
        let ended = async { while state.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended).await;
    }

    /// Ends a pause after a failure and connects at once. Has no effect on an established connection.
    pub fn retry(&self) {
        self.retry.send_replace(());
    }

    /// The revision whose acknowledgement the upstream requested.
    pub(crate) fn ack_requested(&self) -> watch::Receiver<Option<Revision>> {
        self.ack_requested.clone()
    }

    /// The state of the connection, as it changes.
    pub fn state(&self) -> watch::Receiver<FollowerState> {
        self.state.clone()
    }

    /// A second connection to the same process for other calls; `None` without one.
    pub fn connection(&self) -> Option<Connection> {
        self.connection.borrow().clone()
    }

    /// The connection, once there is one; pending forever after the follower ended.
    pub async fn connected(&self) -> Connection {
        let mut connection = self.connection.clone();
        match connection.wait_for(Option::is_some).await.map(|connection| connection.clone()) {
            Ok(Some(connection)) => connection,
            // The follower ended; `wait_for` never returns `None`.
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
        // No code under the lock panics.
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// The pause after `failures` consecutive failures: uniform up to the bound, so that a fleet that lost its
    /// upstream at one moment does not reconnect at one moment. `random` is any number.
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let bound = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(random % nanos.saturating_add(1).max(1))
    }
}

/// A random number, to spread the actions of a fleet.
pub fn random() -> u64 {
    mix64(RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_lie_anywhere_below_a_bound_that_doubles_up_to_the_longest() {
        let backoff = Backoff::default();
        let longest = |failures| (0..1000).map(|i| backoff.delay(failures, i * 7_919_000_017)).max().unwrap();
        assert!(longest(1) <= Duration::from_millis(50) && longest(1) > Duration::from_millis(45));
        assert!(longest(2) <= Duration::from_millis(100) && longest(2) > Duration::from_millis(90));
        assert!(longest(60) <= Duration::from_secs(5) && longest(60) > Duration::from_millis(4500));
        assert_eq!(backoff.delay(9, 0), Duration::ZERO);
    }
}
