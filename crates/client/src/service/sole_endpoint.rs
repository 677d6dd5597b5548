//! The endpoint of a service whose requests need no decision, so that another component may send them.

use std::{fmt, io, sync::Arc};

use tokio::time::Instant;

use crate::{
    discovery::ServiceState,
    dispatch::SentRequest,
    service::{ServiceHandle, handle::Handle},
    transport::{ConnectionOwner, EndpointConnection, EndpointPool},
};

/// The endpoint that gets every request of a service, by the records of one moment.
pub struct SoleEndpoint {
    handle: Arc<Handle>,
    state: Arc<ServiceState<Arc<EndpointPool>>>,
    pool: Arc<EndpointPool>,
}

impl ServiceHandle {
    /// The endpoint that gets every request of the service; `None` while requests need a decision each.
    #[doc(hidden)]
    pub fn sole_endpoint(&self) -> Option<SoleEndpoint> {
        let mesh = &self.inner.mesh;
        if mesh.source.leases().is_some() {
            return None;
        }
        let state = self.inner.subscription.state();
        let ServiceState::Ready(ready) = &*state else { return None };
        let pool = ready.sole_transport(&mesh.transport)?;
        Some(SoleEndpoint { handle: Arc::clone(&self.inner), state, pool })
    }
}

impl SoleEndpoint {
    /// The host that the library sends to the endpoint.
    pub fn authority(&self) -> &str {
        self.handle.default_headers.authority.as_str()
    }

    /// Whether it is the same endpoint.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Waits until the records have changed, and it may not be the only endpoint any more.
    pub async fn outdated(&self) {
        self.handle.subscription.changed(&self.state).await;
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// When the endpoint cannot be reached.
    pub async fn connect(&self) -> io::Result<EndpointConnection> {
        self.pool.open().await.map_err(io::Error::other)
    }

    /// A request that was sent to the endpoint over this connection, which returns to its owner after the response.
    pub fn sent(
        &self,
        connection: EndpointConnection,
        owner: Box<dyn ConnectionOwner>,
        began: Instant,
    ) -> SentRequest {
        SentRequest::new(Arc::clone(&self.pool), connection.owned_by(owner), began)
    }
}

impl fmt::Debug for SoleEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoleEndpoint").field("endpoint", self.pool.target()).finish_non_exhaustive()
    }
}
