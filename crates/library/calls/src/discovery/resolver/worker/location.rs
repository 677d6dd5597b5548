//! Finds out where this process runs.

use fairmesh_model::Location;
use fairmesh_rib::disk_cache::Cache;

use super::Worker;
use crate::discovery::endpoint_transport::EndpointTransport;

impl<T: EndpointTransport> Worker<T> {
    /// Uses the location that the agent reports, unless the program configured one.
    pub(super) fn update_location(&mut self) {
        let state = self.handle.state().borrow().clone();
        match state.location {
            Some(reported) => self.set_location(reported),
            // The upstream is a control plane, which reports no location.
            None if state.connected => self.use_fallback_location(),
            None => {}
        }
    }

    /// Uses the location that the agent stored on disk, or else the configured fallback.
    pub(super) fn use_fallback_location(&mut self) {
        if self.topology.location.is_some() {
            return;
        }
        let stored = self.config.cache_dir.as_deref().map(|folder| Cache::read_only(folder).location());
        let stored = stored.transpose().unwrap_or_else(|problem| {
            tracing::warn!(%problem, "the stored location of the agent cannot be read");
            None
        });
        if let Some(location) = stored.flatten().or_else(|| self.config.fallback_location.clone()) {
            self.set_location(location);
        }
    }

    fn set_location(&mut self, location: Location) {
        if self.config.location.is_none() && self.topology.location.as_ref() != Some(&location) {
            self.topology.location = Some(location);
            self.mark_all_stale();
        }
    }
}
