//! Follows another process's routing information base: a control plane's, a replica's, an agent's.

mod acknowledge;
mod collect;
mod follow;
mod gather;
mod patience;
mod standing;
mod subscriptions;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Location, Prefix, Revision, StoreId, arith::mix64};
use fairmesh_wire::{handshake::Connection, transport::Address};
use follow::Follower;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use acknowledge::acknowledge;
pub use gather::Gather;
pub use standing::Standing;

use crate::{About, Update};

/// Whom to follow and how.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Where to connect, tried in turn; at least one. Where there are several, one that is itself out of touch is left
    /// after some seconds.
    pub addresses: Vec<Address>,
    /// What the reader says it is, for people: `agent host-7`.
    pub software: String,
    /// How long to wait between attempts.
    pub backoff: Backoff,
    /// Whether an upstream whose revision is behind what was seen is left for another. Needed by whoever passes
    /// revisions on; one who does not would rather have what an agent found on its disk than nothing, and never gets
    /// less than it has of one prefix either way.
    pub refuse_lagging: bool,
}

/// Waits between attempts: a random time up to a bound that doubles with every failure.
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

/// Who takes what an upstream sends. Called in order from one task; must not block.
pub trait Sink: Send + 'static {
    /// Everything up to `update.revision`, to be applied as one change. Acknowledge it with [`Handle::ack`] once
    /// decisions rest on it.
    ///
    /// A revision of another store than before means that all that is held came from elsewhere: what the update does
    /// not hold, later ones bring.
    fn update(&mut self, update: Update);

    /// The upstream does not serve this prefix; it is asked again on the next connection.
    fn refused(&mut self, prefix: &Prefix, reason: &str);

    /// The upstream lost its own upstream, so that what is held is `age` old at worst and ages from now on; or is in touch
    /// with it again, where `age` is zero.
    fn contact(&mut self, _age: Duration) {}

    /// The upstream is away: what is held ages from now on.
    fn disconnected(&mut self) {}

    /// Whether [`Sink::held`] finds what the upstream sent. Where it does, large values that change a little are sent as what
    /// differs.
    const HOLDS: bool = false;

    /// What is at a key by all that the upstream sent so far; `None` where that is nothing, or not to be had.
    fn held(&self, _key: &str) -> Option<Bytes> {
        None
    }
}

/// How the connection to the upstream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether it is there, its handshake included.
    pub connected: bool,
    /// Since when it is so.
    pub since: Instant,
    /// Attempts in a row that brought nothing, as of the last one that began or ended.
    pub failures: u32,
    /// Where the upstream runs, as it said when last connected; agents say so.
    pub location: Option<Location>,
    /// Its store, as it said when last connected.
    pub store: Option<StoreId>,
    /// The address tried or connected last.
    pub address: Option<Address>,
    /// Why the last attempt or connection ended, for people.
    pub error: Option<String>,
}

/// Steers what is followed; dropping the last clone ends the connection.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
    connection: watch::Receiver<Option<Connection>>,
    hurried: watch::Receiver<Option<Revision>>,
    _alive: Arc<DropGuard>,
}

/// The reader: connects, subscribes, and connects again.
#[derive(Debug)]
pub struct Upstream;

/// What the owner wants, compared with what was asked for whenever `changed` says so. Wishes and not a queue of them, so
/// that an owner that asks faster than the connection sends costs nothing.
#[derive(Debug, Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Wanted {
    prefixes: BTreeMap<Prefix, Wish>,
    /// The prefixes whose wishes changed since they were last compared with what was asked for; `None` while there is no
    /// connection over which that was done: all are compared then.
    changed: Option<BTreeSet<Prefix>>,
    ack: Option<Revision>,
    about: Option<About>,
    /// How often the prefixes changed.
    changes: u64,
}

/// A prefix that is wanted. Wished for again after it was given up, it is another wish: what was held is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    number: u64,
    /// Boxed, since nothing is held of most when they are first wished for.
    held: Option<Box<Revision>>,
}

impl Upstream {
    /// Starts to follow, on the current runtime.
    pub fn spawn(config: UpstreamConfig, sink: impl Sink) -> Handle {
        let shared = Arc::new(Shared::default());
        let alive = CancellationToken::new();
        let (state, watched) = watch::channel(State::new());
        let (connection, connected) = watch::channel(None);
        let (hurry, hurried) = watch::channel(None);
        let follower = Follower::new(config, sink, shared.clone(), hurry);
        tokio::spawn(follower.run(state, connection, alive.clone()));
        Handle {
            shared,
            state: watched,
            connection: connected,
            hurried,
            _alive: Arc::new(alive.drop_guard()),
        }
    }
}

impl Handle {
    /// Says what the reader is, over this connection and all that follow.
    pub fn introduce(&self, about: About) {
        self.shared.lock().about = Some(about);
        self.shared.changed.notify_one();
    }

    /// Follows a prefix. Following it already is no error.
    pub fn subscribe(&self, prefix: Prefix) {
        self.wish([(prefix, None)]);
    }

    /// Follows several prefixes, which are asked for together.
    pub fn subscribe_all(&self, prefixes: impl IntoIterator<Item = Prefix>) {
        self.wish(prefixes.into_iter().map(|prefix| (prefix, None)));
    }

    /// Follows prefixes of which copies of these revisions are held. They are asked for together, so that whoever passes
    /// revisions on gets what all of them missed as one change.
    pub fn subscribe_held(&self, held: impl IntoIterator<Item = (Prefix, Revision)>) {
        self.wish(held.into_iter().map(|(prefix, revision)| (prefix, Some(revision))));
    }

    /// No longer follows a prefix.
    pub fn unsubscribe(&self, prefix: &Prefix) {
        let mut wanted = self.shared.lock();
        wanted.changes += 1;
        wanted.prefixes.remove(prefix);
        wanted.note(prefix);
        drop(wanted);
        self.shared.changed.notify_one();
    }

    /// Says that everything up to `revision` is applied: decisions rest on it from now on. The upstream hears so within a
    /// second, and at once where somebody waits for it.
    pub fn ack(&self, revision: Revision) {
        self.shared.lock().ack = Some(revision);
        self.shared.changed.notify_one();
    }

    /// The revision whose acknowledgement somebody waits for.
    pub(crate) fn hurried(&self) -> watch::Receiver<Option<Revision>> {
        self.hurried.clone()
    }

    /// How the connection stands, as it changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// A connection beside the watch, for other calls to the same process; `None` while there is none.
    pub fn connection(&self) -> Option<Connection> {
        self.connection.borrow().clone()
    }

    /// The connection, as soon as there is one; never where nothing is followed any more.
    pub async fn connected(&self) -> Connection {
        let mut connection = self.connection.clone();
        match connection.wait_for(Option::is_some).await.map(|connection| connection.clone()) {
            Ok(Some(connection)) => connection,
            // The follower is gone; `None` was waited out.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn wish(&self, prefixes: impl IntoIterator<Item = (Prefix, Option<Revision>)>) {
        let mut wanted = self.shared.lock();
        wanted.changes += 1;
        let number = wanted.changes;
        for (prefix, held) in prefixes {
            wanted.note(&prefix);
            let held = held.map(Box::new);
            wanted.prefixes.entry(prefix).or_insert(Wish { number, held });
        }
        drop(wanted);
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        // Nothing that runs under the lock panics.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new() -> Self {
        let since = Instant::now();
        Self { connected: false, since, failures: 0, location: None, store: None, address: None, error: None }
    }
}

impl Wanted {
    fn note(&mut self, prefix: &Prefix) {
        if let Some(changed) = &mut self.changed {
            changed.insert(prefix.clone());
        }
    }
}

impl Backoff {
    /// How long to wait after `failures` in a row: any time up to the bound, so that a fleet that lost its upstream at
    /// one moment does not come back at one moment. `random` is any number.
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let bound = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(random % nanos.saturating_add(1).max(1))
    }
}

/// Any number, to spread what a fleet would otherwise do at one moment.
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
