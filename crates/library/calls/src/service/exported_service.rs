//! A service as numbers, so that another component can pick its endpoints and send requests to them.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use fairmesh_balancer::SharedBlock;
use fairmesh_connections::{ConnectionOwner, EndpointConnection, EndpointPool, RawConnection};
use fairmesh_model::{LocalTransport, ServiceName};
use fairmesh_router::{EndpointStats, EndpointTarget, Outcome, RouteNumbers, ServiceNumbers};
use tokio::time::Instant;

use crate::{
    discovery::ServiceState,
    dispatch::SentRequest,
    service::{ServiceHandle, handle::Handle},
};

/// Snapshot of a service whose requests need only a route and a pick.
pub struct ExportedService {
    handle: Arc<Handle>,
    state: Arc<ServiceState<Arc<EndpointPool>>>,
    /// Numbers from which the endpoint is picked.
    pub numbers: ServiceNumbers,
    /// Numbers from which the target service is chosen.
    pub routes: RouteNumbers,
}

/// An endpoint that the exported numbers refer to.
#[derive(Clone)]
pub struct ExportedEndpoint {
    pool: Arc<EndpointPool>,
    stats: Arc<EndpointStats>,
    index: u32,
}

/// A call that another component counted at its endpoint. Dropping this value ends the call, unless the library's own
/// call has taken it over.
pub(crate) struct CountedCall {
    endpoint: ExportedEndpoint,
    is_counted: bool,
}

impl ExportedService {
    /// Returns the service as numbers.
    ///
    /// # Errors
    /// The reason why its requests need more than a route and a pick.
    pub fn of(handle: &ServiceHandle) -> Result<Self, &'static str> {
        let handle = &handle.inner;
        let None = handle.mesh.source.leases() else { return Err("its calls take a lookaside") };
        let state = handle.subscription.state();
        let ServiceState::Ready(ready) = &*state else { return Err("it has no records yet") };
        let (numbers, routes) = ready.numbers(handle.default_headers.authority.as_str())?;
        Ok(Self { handle: Arc::clone(handle), state, numbers, routes })
    }

    /// The service.
    pub fn name(&self) -> &ServiceName {
        self.handle.subscription.name()
    }

    /// The host that the library sends to endpoints.
    pub fn authority(&self) -> &str {
        self.handle.default_headers.authority.as_str()
    }

    /// The current time of the clock of picks, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.handle.mesh.clock.now()
    }

    /// Counts calls in this shared memory from now on, unless other shared memory is still in use. Returns the memory
    /// in use.
    pub fn share_counts(
        &self,
        is_in_use: impl Fn(&dyn SharedBlock) -> bool,
        memory: impl FnOnce() -> Option<Box<dyn SharedBlock>>,
    ) -> Option<&dyn SharedBlock> {
        self.stats().share(is_in_use, memory)
    }

    /// The statistics in which calls are counted.
    pub fn stats(&self) -> &Arc<EndpointStats> {
        self.handle.subscription.endpoint_stats()
    }

    /// What may carry calls within a machine to endpoints with mutual TLS.
    pub fn local_transport(&self) -> LocalTransport {
        let ServiceState::Ready(ready) = &*self.state else { return LocalTransport::Sidecar };
        ready.upstream.policy().local_transport
    }

    /// Waits until the records have changed.
    pub async fn outdated(&self) {
        self.handle.subscription.changed(&self.state).await;
    }

    /// An endpoint of the numbers, by index.
    pub fn endpoint(&self, index: u32) -> Option<ExportedEndpoint> {
        let ServiceState::Ready(ready) = &*self.state else { return None };
        let pool = ready.transport(index, &self.handle.mesh.transport);
        let stats = Arc::clone(self.stats());
        self.numbers.indices().any(|one| one == index).then_some(ExportedEndpoint { pool, stats, index })
    }
}

impl ExportedEndpoint {
    /// Index of the endpoint in the numbers.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Address and other properties from the endpoint's record.
    pub fn target(&self) -> &EndpointTarget {
        self.pool.target()
    }

    pub(crate) fn pool(&self) -> &Arc<EndpointPool> {
        &self.pool
    }

    /// Whether both values are the same endpoint.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Opens a connection to the endpoint.
    ///
    /// # Errors
    /// The endpoint cannot be reached.
    pub async fn connect(&self) -> io::Result<EndpointConnection> {
        self.pool.open().await.map_err(io::Error::other)
    }

    /// Opens a plaintext connection to the program behind the endpoint, at the address that the endpoint has stated.
    ///
    /// # Errors
    /// The program cannot be reached.
    pub async fn connect_program(&self, program: SocketAddr) -> io::Result<EndpointConnection> {
        self.pool.open_program(program).await
    }

    /// Opens a connection by mutual TLS, over which the endpoint proves its identity; an error after `connected_by`.
    ///
    /// # Errors
    /// The endpoint cannot be reached.
    pub async fn connect_raw(&self, connected_by: Instant) -> io::Result<RawConnection> {
        self.pool.open_raw(connected_by).await.map_err(io::Error::other)
    }

    /// Wraps a request that was counted at the endpoint and sent over this connection. The connection returns to its
    /// owner after the response. `seed` is the seed of the decision.
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

    /// Ends the count of a request at the endpoint, after its response.
    pub fn uncount(&self) {
        // There is no penalty, so the time does not matter.
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

    /// Hands the counted call over to a call of this library, which then ends it.
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
