use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_connections::TransportContext;
use fairmesh_model::{
    ServiceName,
    arith::{hash_text, mix64},
};
use tokio::sync::Semaphore;

#[cfg(feature = "fixed")]
use super::fixed_mesh::InjectedFaults;
use super::state_source::Source;
use crate::{
    call::{Clock, Principal},
    fault::Fault,
    lookaside::ServiceLookasides,
    observe::{Counters, Freshness, Observer},
};

/// State that all handles of a mesh share.
pub(crate) struct MeshState {
    pub(crate) source: Source,
    /// The lookasides that policies name.
    pub(crate) service_lookasides: ServiceLookasides,
    pub(crate) counters: Arc<Counters>,
    pub(crate) transport: TransportContext,
    /// Whether the program also uses the transport's identity elsewhere.
    pub(crate) shares_identity: bool,
    pub(crate) clock: Clock,
    /// Observer of every attempt.
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// The injected faults of a mesh for tests; `None` in production.
    #[cfg(feature = "fixed")]
    pub(super) injected_faults: Option<Arc<InjectedFaults>>,
    /// Permits for mirrored calls without a principal.
    pub(crate) mirror_permits: Arc<Semaphore>,
    seed: AtomicU64,
}

impl MeshState {
    pub(super) fn new(
        source: Source,
        client_id: String,
        transport: TransportContext,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        Self {
            clock: source.clock(),
            source,
            seed: AtomicU64::new(hash_text(&client_id) ^ u64::from(std::process::id())),
            service_lookasides: ServiceLookasides::new(client_id, transport.transport.clone()),
            counters: Arc::new(Counters::new(Arc::clone(&transport.counters))),
            transport,
            shares_identity: false,
            observer,
            #[cfg(feature = "fixed")]
            injected_faults: None,
            mirror_permits: Principal::mirror_permits(),
        }
    }

    /// The fault that calls of a service get, if a test injects one.
    #[inline]
    pub(crate) fn injected_fault(&self, _name: &ServiceName) -> Option<Fault> {
        #[cfg(feature = "fixed")]
        return self.injected_faults.as_ref()?.of(_name);
        #[cfg(not(feature = "fixed"))]
        None
    }

    /// Returns a fresh seed. A mixed counter is as good as a random number for making a choice, and costs less.
    #[inline]
    pub(crate) fn seed(&self) -> u64 {
        mix64(self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }

    /// Age and source of the records.
    pub(crate) fn freshness(&self) -> Freshness {
        let state = self.source.state().borrow().clone();
        Freshness {
            connected: state.connected,
            age: self.source.data_age(),
            address: state.address,
            location: state.location,
            error: state.error,
        }
    }
}

impl fmt::Debug for MeshState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshState").field("source", &self.source).finish_non_exhaustive()
    }
}
