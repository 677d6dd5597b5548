//! Applies updates of the RIB.

use bytes::Bytes;
use fairmesh_model::{Hosts, Invalid, Prefix, Record, RecordKey, Regions, RoundTrips};
use fairmesh_rib::{ArrivedRecord, Mirror, Snapshot, Update};
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use super::{CONNECT_PATIENCE, Worker, roots};
use crate::discovery::{endpoint_transport::EndpointTransport, resolver::policy_defaults::scope_of};

impl<T: EndpointTransport> Worker<T> {
    pub(super) fn apply_update(&mut self, update: &Update) {
        let before = self.revision.replace(update.revision);
        self.apply(update);
        for name in &self.sharded {
            if let Some(service) = self.services.get_mut(name) {
                service.records.shards.announced_after(before);
            }
        }
    }

    /// Reports the arrival of the very first snapshot.
    fn note_first_snapshot(&self, prefix: &Prefix) {
        if *prefix == Prefix::topology() {
            self.registry.first_snapshot.send_if_modified(|arrived| !std::mem::replace(arrived, true));
        }
    }

    pub(super) fn mark_arrived(&mut self, prefix: &Prefix) {
        if *prefix == Prefix::topology() {
            self.has_topology = true;
            // Services wait for the roots for the same time after it.
            self.awaits_roots = self.awaits_roots.map(|_| Instant::now() + CONNECT_PATIENCE);
            self.defaults.wait_until(Instant::now() + CONNECT_PATIENCE);
            self.mark_all_stale();
        } else if *prefix == roots() {
            if self.awaits_roots.take().is_some() {
                self.mark_all_stale();
            }
        } else if let Some((name, service)) =
            self.prefix_owners.get(prefix).and_then(|name| Some((name, self.services.get_mut(name)?)))
        {
            service.records.arrived(prefix);
            self.stale.insert(name.clone());
        } else if let Some(scope) = scope_of(prefix) {
            self.defaults_arrived(&scope);
        }
    }

    fn put_topology(&mut self, key: &RecordKey, value: &Bytes) -> Result<(), Invalid> {
        // Roots that cannot be decoded prove a trust domain too: without it, plaintext endpoints would be used.
        if *key == RecordKey::TrustBundle && !self.topology.has_trust_domain {
            self.topology.has_trust_domain = true;
            self.mark_all_stale();
        }
        match record_encoding::decode(key, value)? {
            Record::Regions(regions) => self.topology.regions = regions,
            Record::RoundTrips(round_trips) => self.topology.round_trips.set_declared(round_trips),
            Record::MeasuredDistances(distances) => {
                let RecordKey::MeasuredDistances(from) = key else { return Ok(()) };
                if !self.topology.set_measured(from, Some(distances)) {
                    return Ok(());
                }
            }
            Record::Hosts(hosts) => self.topology.hosts = hosts,
            Record::PolicyDefaults(defaults) => {
                if let RecordKey::PolicyDefaults(scope) = key {
                    self.put_defaults(scope, Some(defaults));
                }
                return Ok(());
            }
            // A mesh does not lose its trust domain, so a snapshot without the record does not remove it.
            Record::TrustBundle(_) => return Ok(()),
            _ => {}
        }
        self.mark_all_stale();
        Ok(())
    }

    fn log_invalid(&self, key: &RecordKey, problem: &Invalid) {
        let service = key.service().and_then(|name| self.services.get(name));
        let is_first = service.is_some_and(|service| service.records.is_policy_unreadable());
        match (key, self.topology.authorizes_callers) {
            (RecordKey::Policy(_), true) if is_first => {
                tracing::error!(%key, %problem, "the policy cannot be read: all calls of its service are refused");
            }
            (RecordKey::Policy(_), false) if is_first => {
                tracing::error!(%key, %problem, "the policy cannot be read: calls are made without it");
            }
            _ => tracing::warn!(%key, %problem, "invalid record; the previous one stays in use"),
        }
    }

    fn delete_topology(&mut self, key: &RecordKey) {
        match key {
            RecordKey::Regions => self.topology.regions = Regions::default(),
            RecordKey::RoundTrips => self.topology.round_trips.set_declared(RoundTrips::default()),
            RecordKey::MeasuredDistances(from) => {
                if !self.topology.set_measured(from, None) {
                    return;
                }
            }
            RecordKey::Hosts => self.topology.hosts = Hosts::default(),
            RecordKey::PolicyDefaults(scope) => return self.put_defaults(scope, None),
            _ => return,
        }
        self.mark_all_stale();
    }
}

impl<T: EndpointTransport> Mirror for Worker<T> {
    fn retain(&mut self, snapshot: &Snapshot) {
        let owner = self.prefix_owners.get(&snapshot.prefix);
        if snapshot.prefix == Prefix::topology() {
            let measured = self.topology.round_trips.measuring_regions().cloned();
            let measured: Vec<_> = measured.map(RecordKey::MeasuredDistances).collect();
            for key in
                [RecordKey::Regions, RecordKey::RoundTrips, RecordKey::Hosts].into_iter().chain(measured)
            {
                if !snapshot.holds(&key.to_string()) {
                    self.delete_topology(&key);
                }
            }
        } else if let Some(service) = owner.and_then(|owner| self.services.get_mut(owner)) {
            service.records.retain(&snapshot.prefix, |key| snapshot.holds(key));
        } else if let Some(scope) = scope_of(&snapshot.prefix)
            && !snapshot.holds(snapshot.prefix.as_str())
        {
            self.put_defaults(&scope, None);
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        let value = record.value;
        let result = match key.service() {
            None => self.put_topology(&key, value),
            Some(name) => match self.services.get_mut(name) {
                Some(service) => {
                    self.stale.insert(name.clone());
                    if matches!(key, RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)) {
                        self.sharded.insert(name.clone());
                    }
                    service.records.put(&key, record)
                }
                None => Ok(()),
            },
        };
        if let Err(problem) = result {
            self.log_invalid(&key, &problem);
        }
    }

    fn delete(&mut self, text: &str, key: &RecordKey) {
        if let Some((name, service)) =
            key.service().and_then(|name| Some((name, self.services.get_mut(name)?)))
        {
            self.stale.insert(name.clone());
            return service.records.delete(text, key);
        }
        self.delete_topology(key);
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        self.mark_arrived(prefix);
        self.note_first_snapshot(prefix);
    }
}
