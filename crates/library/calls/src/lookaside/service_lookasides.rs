//! Lookasides that the policies of services name (ServiceRouter §3.3): callers request each pick from them.
//!
//! Everything else comes from the caller's records: routes, deadlines, retries, and the endpoints that are called as
//! long as a lookaside has never responded.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::ServiceName;
use fairmesh_wire::transport::{Address, Transport};
use tokio::time::timeout;

use super::{
    lease_set::LeaseSet,
    leases::{LAST_REPORTS, Leases},
};
use crate::{call::CallContext, discovery::ServiceState};

/// Maximum number of lookasides per program. Beyond it, all lookasides are forgotten, and those in use are connected
/// again.
const MAX_LOOKASIDES: usize = 64;

/// Lookasides that policies name, by address.
pub(crate) struct ServiceLookasides {
    by_address: Mutex<HashMap<Arc<str>, Option<Arc<Leases>>>>,
    client_id: String,
    transport: Transport,
}

impl ServiceLookasides {
    /// Creates an empty set for a caller with this id.
    pub(crate) fn new(client_id: String, transport: Transport) -> Self {
        Self { by_address: Mutex::default(), client_id, transport }
    }

    /// Returns the service's leases for a call that begins now; `None` if there never were any. The first call waits
    /// for the lookaside up to a timeout, unless the lookaside is known to be unreachable.
    pub(crate) async fn for_call(
        &self,
        address: &Arc<str>,
        name: &ServiceName,
        context: &CallContext,
    ) -> Option<Arc<LeaseSet>> {
        let leases = self.at(address)?;
        let set = leases.for_call(name, context);
        let mut state = set.subscription.state();
        // The first pick of a set ends within a bounded time.
        while matches!(*state, ServiceState::Waiting) {
            // Calls with other keys would wait in vain just as long. The set keeps retrying.
            if leases.is_disconnected() {
                return None;
            }
            set.subscription.changed(&state).await;
            state = set.subscription.state();
        }
        matches!(*state, ServiceState::Ready(_)).then_some(set)
    }

    /// Closes all leases, as [`Leases::close`] does.
    pub(crate) async fn close(&self) {
        let all: Vec<_> = self.by_address().values().flatten().cloned().collect();
        all.iter().for_each(|leases| leases.stop());
        let stopped = async {
            for leases in &all {
                leases.stopped().await;
            }
        };
        let _ = timeout(LAST_REPORTS, stopped).await;
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<Arc<str>, Option<Arc<Leases>>>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, address: &Arc<str>) -> Option<Arc<Leases>> {
        let mut by_address = self.by_address();
        if let Some(known) = by_address.get(address) {
            return known.clone();
        }
        if by_address.len() >= MAX_LOOKASIDES {
            by_address.clear();
        }
        let read = address.parse::<Address>().inspect_err(|error| {
            tracing::warn!(%error, %address, "invalid lookaside address; fix `lookaside` in the policy of the service");
        });
        let of = |address| Arc::new(Leases::new(&self.transport, address, self.client_id.clone()));
        let leases = read.ok().map(of);
        by_address.insert(Arc::clone(address), leases.clone());
        leases
    }
}

impl fmt::Debug for ServiceLookasides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceLookasides").field("by_address", &self.by_address).finish_non_exhaustive()
    }
}
