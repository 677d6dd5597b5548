use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::ServiceName;
use tokio::sync::watch;

use super::{event_queue::EventQueue, worker_event::Event};
use crate::discovery::{service_state::ServiceState, subscription::Subscription};

/// All subscriptions of a mesh.
pub(super) struct SubscriptionRegistry<T> {
    pub(super) by_name: Mutex<HashMap<ServiceName, RegisteredService<T>>>,
    /// Services whose policies have mesh-wide limits. There are few, and they are read often.
    rate_limited: Mutex<HashSet<ServiceName>>,
    /// Services whose calls are counted for traffic reports.
    reported: Mutex<HashSet<ServiceName>>,
    /// Services that are no longer followed but whose last counts have not been read.
    ended: Mutex<Vec<Arc<Subscription<T>>>>,
    /// Services that operators are viewing; usually few.
    watched: Mutex<HashSet<ServiceName>>,
    events: Arc<EventQueue<T>>,
    /// Whether a snapshot of the topology has arrived, from the agent or from its copy on disk. Every mesh has a
    /// topology.
    pub(super) first_snapshot: watch::Sender<bool>,
}

/// A registered subscription. It is held by the registry, the worker and its users.
pub(super) struct RegisteredService<T> {
    pub(super) subscription: Arc<Subscription<T>>,
    /// Whether the subscription was requested since the worker last checked.
    requested: bool,
}

impl<T> RegisteredService<T> {
    fn is_used(&self) -> bool {
        self.requested || self.has_handle()
    }

    fn has_handle(&self) -> bool {
        Arc::strong_count(&self.subscription) > 2
    }
}

impl<T> SubscriptionRegistry<T> {
    pub(super) fn new(events: Arc<EventQueue<T>>) -> Self {
        Self {
            by_name: Mutex::default(),
            rate_limited: Mutex::default(),
            reported: Mutex::default(),
            ended: Mutex::default(),
            watched: Mutex::default(),
            events,
            first_snapshot: watch::Sender::new(false),
        }
    }

    /// Returns the subscription of a service. If the service is not registered yet, registers it and makes the worker
    /// track it.
    pub(super) fn get_or_track(&self, name: &ServiceName) -> Arc<Subscription<T>> {
        let mut by_name = self.by_name();
        if let Some(registered) = by_name.get_mut(name) {
            registered.requested = true;
            return Arc::clone(&registered.subscription);
        }
        let subscription = Arc::new(Subscription::new(name.clone()));
        let registered = RegisteredService { subscription: Arc::clone(&subscription), requested: true };
        by_name.insert(name.clone(), registered);
        // Calls of other services must not wait for the queue.
        drop(by_name);
        self.events.push(Event::Track(Arc::clone(&subscription)));
        subscription
    }

    pub(super) fn by_name(&self) -> MutexGuard<'_, HashMap<ServiceName, RegisteredService<T>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rate_limited(&self) -> MutexGuard<'_, HashSet<ServiceName>> {
        self.rate_limited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reported(&self) -> MutexGuard<'_, HashSet<ServiceName>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watched(&self) -> MutexGuard<'_, HashSet<ServiceName>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the services that operators are viewing. Calls to them are reported by parent from now on, including
    /// calls of published snapshots.
    pub(super) fn watch(&self, services: HashSet<ServiceName>) {
        self.watched().clone_from(&services);
        for name in services {
            let subscription = self.by_name().get(&name).map(|known| Arc::clone(&known.subscription));
            let Some(state) = subscription.map(|subscription| subscription.state()) else { continue };
            if let ServiceState::Ready(ready) = &*state {
                ready.follow_parents();
            }
        }
    }

    /// Whether any service can be called.
    pub(super) fn has_services(&self) -> bool {
        !self.by_name().is_empty()
    }

    /// Records whether the published snapshot of a service has mesh-wide limits, and whether its calls are reported.
    pub(super) fn note_published(&self, subscription: &Subscription<T>) {
        let state = subscription.state();
        let is_limited =
            matches!(&*state, ServiceState::Ready(ready) if ready.upstream.mesh_limits().next().is_some());
        let is_reported = matches!(&*state, ServiceState::Ready(ready) if ready.reported().is_some());
        note(&mut self.rate_limited(), subscription.name(), is_limited);
        note(&mut self.reported(), subscription.name(), is_reported);
    }

    /// Whether a service has a handle, or was requested since the last call of this function.
    pub(super) fn take_used(&self, name: &ServiceName) -> bool {
        let mut by_name = self.by_name();
        let Some(registered) = by_name.get_mut(name) else { return false };
        let used = registered.is_used();
        registered.requested = false;
        used
    }

    /// Removes a service that has no handle, however recently it was requested. Returns whether it was removed.
    pub(super) fn remove_without_handle(&self, name: &ServiceName) -> bool {
        self.remove_unless(name, RegisteredService::has_handle)
    }

    /// Removes a service that is not in use. Returns whether it was removed.
    pub(super) fn remove_unused(&self, name: &ServiceName) -> bool {
        self.remove_unless(name, RegisteredService::is_used)
    }

    fn remove_unless(&self, name: &ServiceName, stays: impl Fn(&RegisteredService<T>) -> bool) -> bool {
        let mut by_name = self.by_name();
        let stays = by_name.get(name).is_some_and(stays);
        if !stays
            && let Some(removed) = by_name.remove(name)
            && self.reported().remove(name)
        {
            self.ended().push(removed.subscription);
        }
        !stays
    }

    /// Returns the services with reported calls that ended since the last call of this function.
    pub(super) fn take_ended(&self) -> Vec<Arc<Subscription<T>>> {
        std::mem::take(&mut *self.ended())
    }

    fn ended(&self) -> MutexGuard<'_, Vec<Arc<Subscription<T>>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of regions, over all services in use, in which health verdicts are currently ignored.
    pub(super) fn health_panics(&self) -> u64 {
        let by_name = self.by_name();
        let panics = by_name.values().map(|registered| match &*registered.subscription.state() {
            ServiceState::Ready(ready) => ready.upstream.panicking_regions().count() as u64,
            _ => 0,
        });
        panics.sum()
    }
}

/// Adds or removes a name. Only the few names that are added are cloned.
fn note(names: &mut HashSet<ServiceName>, name: &ServiceName, is_noted: bool) {
    match is_noted {
        true if names.contains(name) => {}
        true => drop(names.insert(name.clone())),
        false => drop(names.remove(name)),
    }
}
