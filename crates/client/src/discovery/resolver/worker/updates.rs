//! Applying updates of the RIB.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::{Hosts, Invalid, Prefix, Record, RecordKey, Regions, RoundTrips};
use fairmesh_rib::{Snapshot, Update};
use fairmesh_wire::records;
use tokio::time::Instant;

use super::Worker;
use crate::discovery::endpoint_transport::EndpointTransport;

impl<T: EndpointTransport> Worker<T> {
    pub(super) fn apply(&mut self, update: Update) {
        let before = self.revision.replace(update.revision);
        let snapshots = update.snapshots.iter().map(|snapshot| snapshot.age);
        if let Some(age) = snapshots.chain(update.resumed.iter().map(|resumed| resumed.age)).max() {
            self.age.send_modify(|known| known.arrived(age, Instant::now()));
        }
        for resumed in &update.resumed {
            self.mark_arrived(&resumed.prefix);
            self.note_first_snapshot(&resumed.prefix);
        }
        for snapshot in update.snapshots {
            self.apply_snapshot(snapshot);
        }
        for (key, entry) in &update.puts {
            self.put(key, &entry.value);
        }
        for key in &update.deletes {
            self.delete(key);
        }
        for name in &self.sharded {
            if let Some(service) = self.services.get_mut(name) {
                service.records.shards.announced_after(before);
            }
        }
    }

    pub(super) fn apply_snapshot(&mut self, snapshot: Snapshot) {
        let owner = self.prefix_owners.get(&snapshot.prefix);
        if snapshot.prefix == Prefix::topology() {
            for key in [RecordKey::Regions, RecordKey::RoundTrips, RecordKey::Hosts] {
                if !snapshot.holds(&key.to_string()) {
                    self.delete_topology(&key);
                }
            }
        } else if let Some(service) = owner.and_then(|owner| self.services.get_mut(owner)) {
            service.records.retain(&snapshot.prefix, |key| snapshot.holds(key));
        }
        for (key, entry) in &snapshot.entries {
            self.put(key, &entry.value);
        }
        self.mark_arrived(&snapshot.prefix);
        self.note_first_snapshot(&snapshot.prefix);
    }

    /// Reports the first snapshot of all.
    fn note_first_snapshot(&self, prefix: &Prefix) {
        if *prefix == Prefix::topology() {
            self.registry.first_snapshot.send_if_modified(|arrived| !std::mem::replace(arrived, true));
        }
    }

    pub(super) fn mark_arrived(&mut self, prefix: &Prefix) {
        self.refused.remove(prefix);
        if *prefix == Prefix::topology() {
            self.has_topology = true;
            self.mark_all_stale();
        } else if let Some((name, service)) =
            self.prefix_owners.get(prefix).and_then(|name| Some((name, self.services.get_mut(name)?)))
        {
            service.records.arrived(prefix);
            self.stale.insert(name.clone());
        }
    }

    fn put(&mut self, text: &Arc<str>, value: &Bytes) {
        let Ok(key) = RecordKey::parse(text) else {
            return tracing::debug!(key = %text, "skipped a key of a newer version");
        };
        let result = match key.service() {
            None => self.put_topology(&key, value),
            Some(name) => match self.services.get_mut(name) {
                Some(service) => {
                    self.stale.insert(name.clone());
                    if matches!(key, RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)) {
                        self.sharded.insert(name.clone());
                    }
                    service.records.put(text, &key, value)
                }
                None => Ok(()),
            },
        };
        if let Err(problem) = result {
            tracing::warn!(key = %text, %problem, "invalid record; the previous one stays in use");
        }
    }

    fn put_topology(&mut self, key: &RecordKey, value: &Bytes) -> Result<(), Invalid> {
        match records::decode(key, value)? {
            Record::Regions(regions) => self.topology.regions = regions,
            Record::RoundTrips(round_trips) => self.topology.round_trips = round_trips,
            Record::Hosts(hosts) => self.topology.hosts = hosts,
            _ => {}
        }
        self.mark_all_stale();
        Ok(())
    }

    fn delete(&mut self, text: &str) {
        let Ok(key) = RecordKey::parse(text) else { return };
        if let Some((name, service)) =
            key.service().and_then(|name| Some((name, self.services.get_mut(name)?)))
        {
            self.stale.insert(name.clone());
            return service.records.delete(text, &key);
        }
        self.delete_topology(&key);
    }

    fn delete_topology(&mut self, key: &RecordKey) {
        match key {
            RecordKey::Regions => self.topology.regions = Regions::default(),
            RecordKey::RoundTrips => self.topology.round_trips = RoundTrips::default(),
            RecordKey::Hosts => self.topology.hosts = Hosts::default(),
            _ => return,
        }
        self.mark_all_stale();
    }
}
