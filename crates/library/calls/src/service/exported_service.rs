//! A service as numbers, so that another component may pick its endpoints and send requests to them.

use std::{fmt, io, sync::Arc};

use fairmesh_balancer::SharedBlock;
use fairmesh_connections::{ConnectionOwner, EndpointConnection, EndpointPool};
use fairmesh_model::ServiceName;
use fairmesh_router::{EndpointStats, EndpointTarget, Outcome, RouteNumbers, ServiceNumbers};
use tokio::time::Instant;

use crate::{
    discovery::ServiceState,
    dispatch::SentRequest,
    service::{ServiceHandle, handle::Handle},
};

/// A service whose requests need nothing but a route and a pick, by the records of one moment.
pub struct ExportedService {
    handle: Arc<Handle>,
    state: Arc<ServiceState<Arc<EndpointPool>>>,
    /// What the pick is decided from.
    pub numbers: ServiceNumbers,
    /// What the service that gets a request is decided from.
    pub routes: RouteNumbers,
}

/// An endpoint that the numbers name.
#[derive(Clone)]
pub struct ExportedEndpoint {
    pool: Arc<EndpointPool>,
    stats: Arc<EndpointStats>,
    index: u32,
}

/// A call that another component has counted at its endpoint; ends with the value, unless the call that it becomes ends it.
pub(crate) struct CountedCall {
    endpoint: ExportedEndpoint,
    is_counted: bool,
}

impl ExportedService {
    /// The service as numbers; `None` while requests need more than a route and a pick.
    pub fn of(handle: &ServiceHandle) -> Option<Self> {
        let handle = &handle.inner;
        if handle.mesh.source.leases().is_some() {
            return None;
        }
        let state = handle.subscription.state();
        let ServiceState::Ready(ready) = &*state else { return None };
        let (numbers, routes) = ready.numbers(handle.default_headers.authority.as_str())?;
        Some(Self { handle: Arc::clone(handle), state, numbers, routes })
    }

    /// The service.
    pub fn name(&self) -> &ServiceName {
        self.handle.subscription.name()
    }

    /// The host that the library sends to endpoints.
    pub fn authority(&self) -> &str {
        self.handle.default_headers.authority.as_str()
    }

    /// The time of the clock of picks, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.handle.mesh.clock.now()
    }

    /// Counts calls in this memory from now on, unless what it shares already is still in use; what it shares.
    pub fn share_counts(
        &self,
        is_in_use: impl Fn(&dyn SharedBlock) -> bool,
        memory: impl FnOnce() -> Option<Box<dyn SharedBlock>>,
    ) -> Option<&dyn SharedBlock> {
        self.stats().share(is_in_use, memory)
    }

    /// Where its calls are counted.
    pub fn stats(&self) -> &Arc<EndpointStats> {
        self.handle.subscription.endpoint_stats()
    }

    /// Waits until the records have changed.
    pub async fn outdated(&self) {
        self.handle.subscription.changed(&self.state).await;
    }

    /// An endpoint of the numbers.
    pub fn endpoint(&self, index: u32) -> Option<ExportedEndpoint> {
        let ServiceState::Ready(ready) = &*self.state else { return None };
        let pool = ready.transport(index, &self.handle.mesh.transport);
        let stats = Arc::clone(self.stats());
        self.numbers.indices().any(|one| one == index).then_some(ExportedEndpoint { pool, stats, index })
    }
}

impl ExportedEndpoint {
    /// Its index in the numbers.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its address, and what else its record says.
    pub fn target(&self) -> &EndpointTarget {
        self.pool.target()
    }

    pub(crate) fn pool(&self) -> &Arc<EndpointPool> {
        &self.pool
    }

    /// Whether it is the same endpoint.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// When the endpoint cannot be reached.
    pub async fn connect(&self) -> io::Result<EndpointConnection> {
        self.pool.open().await.map_err(io::Error::other)
    }

    /// A request that was counted at the endpoint and sent over this connection, which returns to its owner after the response. The
    /// seed is that of the decision.
    pub fn sent(
        &self,
        connection: EndpointConnection,
        owner: Box<dyn ConnectionOwner>,
        began: Instant,
        seed: u64,
    ) -> SentRequest {
        let counted = CountedCall { endpoint: self.clone(), is_counted: true };
        SentRequest::new(counted, connection.owned_by(owner), began, seed)
    }

    /// A request that was counted at the endpoint has its response.
    pub fn uncount(&self) {
        // Without a penalty the time does not matter.
        self.stats.finish(self.index, Outcome::Unknown, 0);
    }
}

impl CountedCall {
    pub(crate) fn pool(&self) -> &Arc<EndpointPool> {
        &self.endpoint.pool
    }

    pub(crate) fn index(&self) -> u32 {
        self.endpoint.index
    }

    /// Leaves it to a call to end it.
    pub(crate) fn hand_over(mut self) {
        self.is_counted = false;
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        if self.is_counted {
            self.endpoint.uncount();
        }
    }
}

impl fmt::Debug for ExportedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedService").field("numbers", &self.numbers).finish_non_exhaustive()
    }
}

impl fmt::Debug for ExportedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedEndpoint").field("endpoint", self.pool.target()).finish_non_exhaustive()
    }
}
