//! Endpoints to which the kernel sends requests.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use fairmesh_calls::forwarding::ExportedEndpoint;
use fairmesh_kernel::{EndpointSlots, program_clock};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::kernel::{
    attached_maps::Attached, pooled_connection::PooledConnection, published_services::RETRY_AFTER,
};

/// Pooled connections of one service.
#[derive(Debug)]
pub(super) struct ServiceConnections {
    open: AtomicUsize,
    /// Cancelled when the service is no longer published.
    pub(super) withdrawn: CancellationToken,
}

/// An endpoint of a published service.
#[derive(Debug)]
pub(super) struct PublishedEndpoint {
    pub(super) endpoint: ExportedEndpoint,
    pub(super) slots: Arc<EndpointSlots>,
    /// When the endpoint was published, by the programs' clock.
    pub(super) published_at: Duration,
    connections: Arc<ServiceConnections>,
    /// Whether a connection is being opened.
    is_opening: AtomicBool,
    /// Cancelled when the endpoint leaves the service, or the service is withdrawn.
    pub(super) withdrawn: CancellationToken,
}

impl ServiceConnections {
    pub(super) fn new(withdrawn: CancellationToken) -> Self {
        Self { open: AtomicUsize::new(0), withdrawn }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.load(Acquire) == 0
    }
}

impl PublishedEndpoint {
    pub(super) fn new(
        endpoint: ExportedEndpoint,
        slots: EndpointSlots,
        connections: &Arc<ServiceConnections>,
    ) -> Self {
        Self {
            endpoint,
            slots: Arc::new(slots),
            published_at: program_clock(),
            connections: Arc::clone(connections),
            is_opening: AtomicBool::new(false),
            withdrawn: connections.withdrawn.child_token(),
        }
    }

    /// Opens a connection; `None` if the endpoint cannot be reached or has enough connections.
    pub(super) async fn open(self: &Arc<Self>, attached: &Arc<Attached>) -> Option<()> {
        let connection = self.endpoint.connect().await.ok()?;
        // Fails if the endpoint closed the connection at once.
        let ends = [connection.stream.local_addr().ok()?, connection.stream.peer_addr().ok()?];
        let slot = self.slots.add(&connection.stream, ends).ok().flatten()?;
        self.connections.open.fetch_add(1, AcqRel);
        let pooled = PooledConnection::new(Arc::clone(attached), Arc::clone(self), slot, connection);
        attached.tasks.spawn(pooled.run());
        Some(())
    }

    /// Opens a further connection in the background if the kernel found no idle one, even if one is idle by now.
    /// Otherwise each burst of requests would go through the proxy.
    pub(super) fn open_if_wanted(self: &Arc<Self>, attached: &Arc<Attached>) {
        if self.slots.take_wanted() && !self.is_opening.swap(true, AcqRel) {
            let (endpoint, attached) = (Arc::clone(self), Arc::clone(attached));
            tokio::spawn(async move {
                if endpoint.open(&attached).await.is_none() {
                    // The endpoint may require TLS, for example. Without a pause, each request would try
                    // again.
                    let _ = timeout(RETRY_AFTER, endpoint.withdrawn.cancelled()).await;
                }
                // Requests that arrived meanwhile may have wanted the same connection.
                endpoint.slots.take_wanted();
                endpoint.is_opening.store(false, Release);
            });
        }
    }

    /// Records that a pooled connection has ended. With its last connection, the service is withdrawn.
    pub(super) fn closed(&self) {
        if self.connections.open.fetch_sub(1, AcqRel) == 1 {
            self.connections.withdrawn.cancel();
        }
    }
}
