//! Reads the agent's copy on disk while the agent is away.

use std::time::SystemTime;

use fairmesh_model::{Prefix, ServiceName};
use fairmesh_rib::{Mirror, Snapshot, disk_cache::Cache};
use tokio::time::Instant;

use super::{Worker, roots};
use crate::discovery::endpoint_transport::EndpointTransport;

/// Maximum rounds of reading: the service and its policy determine which further prefixes are needed.
const ROUNDS: usize = 4;

impl<T: EndpointTransport> Worker<T> {
    /// Serves waiting services from the copy on disk, or makes their calls fail.
    pub(super) async fn read_disk(&mut self) {
        self.disk_read = true;
        self.use_fallback_location();
        let cache = self.config.cache_dir.as_deref().map(Cache::read_only);
        // Data received from the agent is newer than any copy.
        if let Some(cache) = cache.as_ref().filter(|_| !self.has_topology) {
            self.read_prefix(cache, Prefix::topology());
        }
        if let Some(cache) = cache.as_ref().filter(|_| self.awaits_roots.is_some()) {
            self.read_prefix(cache, roots());
        }
        self.mark_arrived(&roots());
        for prefix in self.defaults.missing() {
            if let Some(cache) = &cache {
                self.read_prefix(cache, prefix.clone());
            }
            self.mark_arrived(&prefix);
        }
        let waiting: Vec<_> =
            self.services.iter().filter(|(_, s)| s.is_waiting()).map(|(name, _)| name.clone()).collect();
        for name in waiting {
            for _ in 0..ROUNDS {
                let missing =
                    self.services.get(&name).map(|service| service.records.missing()).unwrap_or_default();
                for prefix in missing {
                    if let Some(cache) = &cache {
                        self.read_prefix(cache, prefix);
                    }
                }
                if self.services.get_mut(&name).is_some_and(|s| s.records.shards.read_locally()) {
                    self.stale.insert(name.clone());
                }
                self.settle().await;
            }
            match self.services.get(&name) {
                Some(service) if service.is_waiting() => {
                    service.publish_unavailable(&self.unreachable_message(&name));
                }
                _ => {
                    tracing::warn!(service = %name, "the agent does not respond; calls are routed by its copy on disk")
                }
            }
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "file ages must survive restarts, and a monotonic clock does not"
    )]
    fn read_prefix(&mut self, cache: &Cache, prefix: Prefix) {
        match cache.load(&prefix, SystemTime::now()) {
            Ok(Some(saved)) => {
                // If the clock was set back, a copy looks newer than it is; its age is only displayed.
                let age = saved.at.elapsed().unwrap_or_default();
                self.age.send_modify(|known| known.add_unrefreshed(age, Instant::now()));
                self.apply_snapshot(&Snapshot { prefix, entries: saved.entries, age });
            }
            Ok(None) => {}
            Err(problem) => tracing::warn!(%prefix, %problem, "the copy on disk cannot be read"),
        }
    }

    fn unreachable_message(&self, service: &ServiceName) -> String {
        let addresses: Vec<_> = self.config.upstream.addresses.iter().map(ToString::to_string).collect();
        let error = self.handle.state().borrow().error.clone().unwrap_or_default();
        format!(
            "the mesh is not reached yet: no agent or control plane responds at {} and there is no copy of {service} on \
             disk; start `fairmesh agent` there, or name the address of one (FAIRMESH_AGENT) or of a control plane \
             (FAIRMESH_CONTROL) ({error})",
            addresses.join(", ")
        )
    }
}
