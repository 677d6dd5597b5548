//! From records to snapshots, off the request path.

mod age;
mod facts;
mod maps;
mod quota;
mod tracked;
mod worker;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::{Location, Prefix, ServiceName, arith::hash_text};
use fairmesh_rib::{
    Update,
    follower::{Follower, FollowerConfig, FollowerState, Sink},
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Lane, Subscription, View};
use age::Age;

/// Who asks and whom.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// The agent, or control planes, to follow.
    pub upstream: FollowerConfig,
    /// The caller's id, the same after its restart.
    pub client_id: String,
    /// Where the caller runs; `None` takes the agent's word, which it leaves beside its copy as well.
    pub location: Option<Location>,
    /// Where the caller runs unless anybody says so.
    pub otherwise: Option<Location>,
    /// Where the agent keeps its copy, to read when the agent cannot be reached and nothing is in memory.
    pub cache_dir: Option<PathBuf>,
    /// How long a service is followed that nobody calls and nobody holds a handle to.
    pub unused: Duration,
}

/// How long a service is followed by default that nobody holds a handle to: programs that make a handle for each request keep
/// their connections.
pub const UNUSED: Duration = Duration::from_secs(10 * 60);

/// Keeps one subscription a service, and publishes a compiled snapshot whenever its records change.
pub struct Resolver<L> {
    registered: Arc<Registered<L>>,
    state: watch::Receiver<FollowerState>,
    /// How old what is known is, where it is not followed to its source.
    age: watch::Receiver<Age>,
    _worker: DropGuard,
}

/// Every subscription of a mesh.
struct Registered<L> {
    by_name: Mutex<HashMap<ServiceName, Listed<L>>>,
    /// The services whose policies have limits that hold for the whole mesh: few, and looked at all the time.
    limited: Mutex<HashSet<ServiceName>>,
    events: mpsc::UnboundedSender<Event<L>>,
    /// Whether anything was learnt, from the agent or from what it left on disk: the topology, which always is there.
    informed: watch::Sender<bool>,
}

/// A subscription on the list. The list and the worker hold it, and besides them those who use it.
struct Listed<L> {
    subscription: Arc<Subscription<L>>,
    /// Whether somebody has asked for it since the worker last looked.
    asked_for: bool,
}

impl<L> Listed<L> {
    fn is_used(&self) -> bool {
        self.asked_for || Arc::strong_count(&self.subscription) > 2
    }
}

/// What the worker hears of.
enum Event<L> {
    /// A service is used for the first time.
    Track(Arc<Subscription<L>>),
    /// The RIB changed.
    Update(Update),
    /// The agent cannot serve a prefix.
    Refused(Prefix, String),
    /// The agent is cut off and its data is this old, or in touch again.
    Contact(Duration),
    /// The agent is away.
    Disconnected,
    /// The agent said something of a large shard map.
    Map(maps::Heard),
}

impl<L> Registered<L> {
    fn get(&self, name: &ServiceName) -> Arc<Subscription<L>> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listed) = by_name.get_mut(name) {
            listed.asked_for = true;
            return Arc::clone(&listed.subscription);
        }
        let subscription = Arc::new(Subscription::new(name.clone()));
        by_name.insert(name.clone(), Listed { subscription: Arc::clone(&subscription), asked_for: true });
        // Fails only when the worker has ended, and then the mesh is gone as well.
        let _ = self.events.send(Event::Track(Arc::clone(&subscription)));
        subscription
    }

    fn limited(&self) -> MutexGuard<'_, HashSet<ServiceName>> {
        self.limited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what was published of a service.
    fn published(&self, subscription: &Subscription<L>) {
        let view = subscription.view();
        let is_limited =
            matches!(&*view, View::Ready(ready) if ready.upstream.mesh_limits().next().is_some());
        let mut limited = self.limited();
        // Of most there is nothing to note.
        if is_limited {
            limited.insert(subscription.name().clone());
        } else {
            limited.remove(subscription.name());
        }
    }

    /// Whether anybody uses a service, or has asked for it since this was last called.
    fn was_used(&self, name: &ServiceName) -> bool {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(listed) = by_name.get_mut(name) else { return false };
        let used = listed.is_used();
        listed.asked_for = false;
        used
    }

    /// Takes a name off the list unless somebody holds a handle to it, however lately it was asked for.
    fn forget_now(&self, name: &ServiceName) -> bool {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let held = by_name.get(name).is_some_and(|listed| Arc::strong_count(&listed.subscription) > 2);
        if !held {
            by_name.remove(name);
        }
        !held
    }

    /// Takes a service off the list, unless somebody uses it.
    fn forget(&self, name: &ServiceName) -> bool {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let used = by_name.get(name).is_some_and(Listed::is_used);
        if !used {
            by_name.remove(name);
        }
        !used
    }
}

impl<L: Lane> Resolver<L> {
    /// Starts to follow; must be called within a tokio runtime. Lasts until it is dropped.
    pub fn start(config: ResolverConfig) -> Self {
        let (events, received) = mpsc::unbounded_channel();
        let registered = Arc::new(Registered {
            by_name: Mutex::default(),
            limited: Mutex::default(),
            events: events.clone(),
            informed: watch::Sender::new(false),
        });
        let handle = Follower::spawn(config.upstream.clone(), EventSink(events));
        let state = handle.state();
        let (age_sender, age) = watch::channel(Age::default());
        let stop = CancellationToken::new();
        let around = tracked::Surroundings {
            regions: Default::default(),
            round_trips: Default::default(),
            hosts: Default::default(),
            location: config.location.clone(),
            client_id: config.client_id.clone(),
            client: hash_text(&config.client_id),
        };
        let maps = maps::address(&config.upstream.addresses).map(|address| {
            let (asks, asked) = mpsc::unbounded_channel();
            let events = registered.events.clone();
            let follower = maps::Follower {
                address,
                software: config.upstream.software.clone(),
                // Fails only when the worker has ended, and then nobody wants to know.
                tell: move |heard| drop(events.send(Event::Map(heard))),
                wanted: Default::default(),
            };
            tokio::spawn(follower.run(asked));
            asks
        });
        tokio::spawn(quota::ask(Arc::clone(&registered), handle.clone(), caller(&config), stop.clone()));
        let worker = worker::Worker::new(config, handle, Arc::clone(&registered), around, (age_sender, maps));
        tokio::spawn(worker.run(received, stop.clone()));
        Self { registered, state, age, _worker: stop.drop_guard() }
    }

    /// What is known of a service; asks for it when it is used for the first time.
    pub fn subscription(&self, name: &ServiceName) -> Arc<Subscription<L>> {
        self.registered.get(name)
    }

    /// Waits, however long it takes, until anything is known: from the agent, or from its copy on disk.
    pub async fn informed(&self) {
        // Fails only when the sender is gone, and `self` holds it.
        let _ = self.registered.informed.subscribe().wait_for(|informed| *informed).await;
    }

    /// In how many regions of the services in use verdicts are ignored now.
    pub fn health_panics(&self) -> u64 {
        let by_name = self.registered.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let panics = by_name.values().map(|listed| match &*listed.subscription.view() {
            View::Ready(ready) => ready.upstream.panicking_regions().len() as u64,
            _ => 0,
        });
        panics.sum()
    }

    /// The connection to the agent.
    pub fn state(&self) -> watch::Receiver<FollowerState> {
        self.state.clone()
    }

    /// How long ago what is known was last confirmed: the agent's own
    /// word for it while connected.
    pub fn data_age(&self) -> Duration {
        let now = Instant::now();
        let known = self.age.borrow().at(now);
        let state = self.state.borrow();
        match known {
            Some(age) => age,
            None if state.connected => Duration::ZERO,
            // Nothing was ever heard, or the worker has yet to hear that the agent is away.
            None => now.saturating_duration_since(state.since),
        }
    }
}

/// A number that no other process has, by which the control plane knows it from one claim to the next.
fn caller(config: &ResolverConfig) -> u64 {
    RandomState::new().hash_one(&config.client_id)
}

/// Hands what the upstream says to the worker, in order.
struct EventSink<L>(mpsc::UnboundedSender<Event<L>>);

impl<L: Lane> Sink for EventSink<L> {
    fn update(&mut self, update: Update) {
        // Fails only when the worker has ended, and then nobody wants to know.
        let _ = self.0.send(Event::Update(update));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        let _ = self.0.send(Event::Refused(prefix.clone(), reason.to_owned()));
    }

    fn age_update(&mut self, age: Duration) {
        let _ = self.0.send(Event::Contact(age));
    }

    fn disconnected(&mut self) {
        let _ = self.0.send(Event::Disconnected);
    }
}

impl<L> fmt::Debug for Resolver<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("state", &self.state).finish_non_exhaustive()
    }
}
