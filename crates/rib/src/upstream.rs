//! Follows another process's routing information base: a control plane's, a replica's, an agent's.

use std::time::Duration;

use fairmesh_model::{Location, Prefix, Revision, StoreId};
use fairmesh_wire::{handshake::Connection, transport::Address};
use tokio::{sync::watch, time::Instant};

use crate::Update;

/// Whom to follow and how.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Where to connect, tried in turn; at least one.
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
}

/// How the connection to the upstream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether it is there, its handshake included.
    pub connected: bool,
    /// Since when it is so.
    pub since: Instant,
    /// Attempts in a row that failed, since it was last there.
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
    state: watch::Receiver<State>,
    connection: watch::Receiver<Option<Connection>>,
}

/// Namespace of the reconnecting reader.
#[derive(Debug)]
pub struct Upstream;

impl Upstream {
    /// Starts to follow, on the current runtime.
    pub fn spawn(_config: UpstreamConfig, _sink: impl Sink) -> Handle {
        unimplemented!()
    }
}

impl Handle {
    /// Follows a prefix. Following it already is no error.
    pub fn subscribe(&self, _prefix: Prefix) {}

    /// Follows a prefix of which a copy of this revision is held.
    pub fn subscribe_from(&self, _prefix: Prefix, _held: Revision) {}

    /// No longer follows a prefix.
    pub fn unsubscribe(&self, _prefix: &Prefix) {}

    /// Says that everything up to `number` of the present store is applied.
    pub fn ack(&self, _number: u64) {}

    /// How the connection stands, as it changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The connection, for other calls to the same process; `None` while there is none.
    pub fn connection(&self) -> Option<Connection> {
        self.connection.borrow().clone()
    }
}
