//! Endpoints that the kernel sends requests to.

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

use crate::kernel::{attached::Attached, pooled::PooledConnection, published::RETRY_AFTER};

/// Pooled connections of one service.
#[derive(Debug)]
pub(super) struct ServiceConnections {
    open: AtomicUsize,
    /// Cancelled when the service is not published any more.
    pub(super) withdrawn: CancellationToken,
}

/// An endpoint of a published service.
#[derive(Debug)]
pub(super) struct PublishedEndpoint {
    pub(super) endpoint: ExportedEndpoint,
    pub(super) slots: Arc<EndpointSlots>,
    /// By the clock of the programs.
    pub(super) published_at: Duration,
    connections: Arc<ServiceConnections>,
    /// Whether a connection is being opened.
    is_opening: AtomicBool,
    /// Cancelled when it is no longer an endpoint of the service, and with the service.
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

    /// Opens a connection; `None` where the endpoint cannot be connected to, or has enough connections.
    pub(super) async fn open(self: &Arc<Self>, attached: &Arc<Attached>) -> Option<()> {
        let connection = self.endpoint.connect().await.ok()?;
        // Refused where the endpoint has closed it at once.
        let ends = [connection.stream.local_addr().ok()?, connection.stream.peer_addr().ok()?];
        let slot = self.slots.add(&connection.stream, ends).ok().flatten()?;
        self.connections.open.fetch_add(1, AcqRel);
        let pooled = PooledConnection::new(Arc::clone(attached), Arc::clone(self), slot, connection);
        attached.tasks.spawn(pooled.run());
        Some(())
    }

    /// Opens a further connection in the background, if the kernel found none idle. Also where one is idle by now: requests that come in
    /// bursts would else take the sidecar at each of them.
    pub(super) fn open_if_wanted(self: &Arc<Self>, attached: &Arc<Attached>) {
        if self.slots.take_wanted() && !self.is_opening.swap(true, AcqRel) {
            let (endpoint, attached) = (Arc::clone(self), Arc::clone(attached));
            tokio::spawn(async move {
                if endpoint.open(&attached).await.is_none() {
                    // It requires TLS, say: each request would try again.
                    let _ = timeout(RETRY_AFTER, endpoint.withdrawn.cancelled()).await;
                }
                // Requests that came meanwhile may have wanted the same one.
                endpoint.slots.take_wanted();
                endpoint.is_opening.store(false, Release);
            });
        }
    }

    /// A pooled connection has ended; with the last one, the service is no longer published.
    pub(super) fn closed(&self) {
        if self.connections.open.fetch_sub(1, AcqRel) == 1 {
            self.connections.withdrawn.cancel();
        }
    }
}
