//! Subscribes to prefixes, publishes services, and acknowledges what was published.

use fairmesh_model::{Prefix, Revision, ServiceName};
use fairmesh_wire::LogLimiter;
use tokio::task::yield_now;

use super::{MAX_UNKNOWN, Worker, aging_tables::note_weakening, roots};
use crate::discovery::{
    endpoint_transport::EndpointTransport,
    resolver::{policy_defaults::scope_of, service_records::PrefixChanges},
};

static REFUSED: LogLimiter = LogLimiter::new();

impl<T: EndpointTransport> Worker<T> {
    /// Subscribes to missing prefixes and publishes complete services. Only then acknowledges the revision, because
    /// decisions now include it. Yields to other tasks of this thread between two services.
    pub(super) async fn settle(&mut self) {
        for name in std::mem::take(&mut self.stale) {
            let defaults = self.defaults.of(&name.tenant);
            let service = self.services.get_mut(&name);
            // An undeclared service is known to be undeclared without its defaults.
            let waits = defaults.is_none()
                && service.as_ref().is_some_and(|service| service.records.declared() != Some(false));
            if let (Some(defaults), Some(service)) = (defaults, service) {
                service.records.set_defaults(defaults);
            }
            self.update_subscriptions(&name);
            if !self.has_topology || self.awaits_roots() || waits {
                self.stale.insert(name);
                continue;
            }
            if let Some(service) = self.services.get_mut(&name) {
                let was_unknown = service.is_unknown();
                service.publish(&self.topology, &self.registry, self.revision.map_or(0, |at| at.number));
                self.registry.note_published(&service.subscription);
                let weakens = service.records.table.as_ref().and_then(|table| table.weakens());
                if service.is_contested() {
                    self.contested.insert(name.clone());
                }
                note_weakening(&mut self.weakening, &name, weakens);
                if service.is_unknown() && !was_unknown {
                    self.unknown.push_back(name);
                }
                yield_now().await;
            }
        }
        self.remove_unknown();
        if let Some(revision) = self.applied() {
            self.handle.ack(revision);
        }
    }

    /// Whether services wait for the roots, because it is unknown whether the mesh has a trust domain.
    fn awaits_roots(&self) -> bool {
        self.awaits_roots.is_some() && !self.topology.transport.secures_mesh()
    }

    /// Subscribes to the prefixes that a service needs, and unsubscribes from those it no longer needs.
    fn update_subscriptions(&mut self, name: &ServiceName) {
        let Some(service) = self.services.get_mut(name) else { return };
        let needed = service.records.needed(self.topology.location.as_ref());
        let PrefixChanges { added, removed } = service.records.subscribe(needed);
        if let Some(maps) = &self.maps {
            service.follow_map(maps, self.topology.location.as_ref());
        }
        self.unsubscribe(removed);
        if !added.is_empty() {
            self.prefix_owners.extend(added.iter().map(|prefix| (prefix.clone(), name.clone())));
            self.handle.subscribe_all(added);
        }
    }

    pub(super) fn unsubscribe(&mut self, prefixes: Vec<Prefix>) {
        for prefix in prefixes {
            self.handle.unsubscribe(&prefix);
            self.prefix_owners.remove(&prefix);
        }
    }

    pub(super) fn handle_refusal(&mut self, prefix: Prefix, reason: &str) {
        match self.prefix_owners.get(&prefix).and_then(|owner| self.services.get(owner)) {
            Some(service) => {
                service.publish_unavailable(&format!("the agent cannot serve it now: {reason}"));
            }
            // Without round trips all regions are equally far: routing is worse, but no call needs to fail.
            None if prefix == Prefix::topology() && !self.has_topology => self.mark_arrived(&prefix),
            None if prefix == Prefix::topology() => {}
            // A control plane of the previous release may refuse these prefixes, and has no such records.
            None if prefix == roots() || scope_of(&prefix).is_some() => self.mark_arrived(&prefix),
            // The prefix was unsubscribed from meanwhile.
            None => return,
        }
        // Processes of a machine start in any order. The follower warns if this lasts.
        if let Some(suppressed) = REFUSED.next() {
            tracing::info!(%prefix, reason, suppressed, "the agent cannot serve this prefix yet; it is subscribed to again");
        }
    }

    /// Forgets the oldest undeclared names beyond the maximum.
    fn remove_unknown(&mut self) {
        for _ in MAX_UNKNOWN..self.unknown.len() {
            let Some(name) = self.unknown.pop_front() else { return };
            if !self.services.get(&name).is_some_and(|service| service.is_unknown()) {
                continue;
            }
            if self.registry.remove_without_handle(&name) {
                self.stop_following(&name);
            } else {
                // The service has a handle.
                self.unknown.push_back(name);
            }
        }
    }

    /// The revision up to which decisions include all records; `None` if it is not known.
    pub(super) fn applied(&self) -> Option<Revision> {
        let latest = self.revision?;
        let is_same_store = |at: &Revision| (at.store, at.partition) == (latest.store, latest.partition);
        let sharded = self.sharded.iter().filter_map(|name| self.services.get(name));
        let shards = sharded.map(|service| &service.records.shards);
        let lagging = shards.filter(|shards| shards.lags());
        let lagging = lagging.map(|shards| shards.applied_before().filter(is_same_store));
        lagging.chain([Some(latest)]).min_by_key(|at| at.map(|at| at.number)).flatten()
    }
}
