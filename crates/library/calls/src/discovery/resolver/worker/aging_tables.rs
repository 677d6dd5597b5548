//! Region tables that their planner no longer confirms: their services are recompiled as the tables lose force.

use std::collections::BTreeMap;

use fairmesh_model::ServiceName;
use tokio::time::Instant;

use super::Worker;
use crate::discovery::endpoint_transport::EndpointTransport;

impl<T: EndpointTransport> Worker<T> {
    /// Time at which the next table loses force.
    pub(super) fn next_weakening(&self) -> Option<Instant> {
        self.weakening.values().min().copied()
    }

    /// Recompiles the services whose tables have just lost force.
    pub(super) fn weaken_tables(&mut self) {
        let now = Instant::now();
        let weakens = |(name, at): (&ServiceName, &Instant)| (*at <= now).then(|| name.clone());
        let due: Vec<_> = self.weakening.iter().filter_map(weakens).collect();
        for name in due {
            tracing::warn!(service = %name, "the region table is not confirmed any more; it weakens");
            self.weakening.remove(&name);
            self.stale.insert(name);
        }
    }
}

/// Records when a service's table next loses force, if ever.
pub(super) fn note_weakening(
    weakening: &mut BTreeMap<ServiceName, Instant>,
    name: &ServiceName,
    at: Option<Instant>,
) {
    match at {
        Some(at) => _ = weakening.insert(name.clone(), at),
        None => _ = weakening.remove(name),
    }
}
