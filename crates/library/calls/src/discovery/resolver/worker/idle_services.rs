//! Removes services that are no longer used.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::ServiceName;
use tokio::time::Instant;

use super::{FAST_CHECK_INTERVAL, IDLE_CHECK_INTERVAL, Worker};
use crate::discovery::{
    endpoint_transport::EndpointTransport,
    resolver::{shard_maps::MapCommand, tracked_service::TrackedService},
};

impl<T: EndpointTransport> Worker<T> {
    /// Interval of checks for idle connections and services.
    pub(super) fn idle_check_interval(&self) -> Duration {
        IDLE_CHECK_INTERVAL.min(self.config.idle_timeout / 4).max(FAST_CHECK_INTERVAL)
    }

    /// Stops following services that no handle and no route of another service has used for the idle timeout.
    pub(super) fn remove_unused(&mut self, now: Instant) {
        let ages = self.age.borrow().at(now).is_some();
        let (registry, timeout) = (&self.registry, self.config.idle_timeout);
        let is_due = |service: &mut TrackedService<T>| service.unused_for(registry, ages, now) >= timeout;
        let due =
            self.services.iter_mut().filter_map(|(name, service)| is_due(service).then(|| name.clone()));
        for name in due.collect::<Vec<_>>() {
            // The service cannot come into use meanwhile: a request for it from now on gets a new subscription.
            if self.registry.remove_unused(&name) {
                self.stop_following(&name);
            }
        }
    }

    pub(super) fn stop_following(&mut self, name: &ServiceName) {
        let Some(mut service) = self.services.remove(name) else { return };
        self.sharded.remove(name);
        self.weakening.remove(name);
        self.registry.rate_limited().remove(name);
        self.unsubscribe(service.records.subscribe(BTreeSet::new()).removed);
        if let Some((maps, map)) = self.maps.as_ref().zip(service.map.take()) {
            let _ = maps.send(MapCommand::Unfollow(map));
        }
        service.retire();
        self.unfollow_defaults(&name.tenant);
    }
}
