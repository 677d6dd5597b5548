//! Services whose requests the kernel sends.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Release},
        },
    },
    time::Duration,
};

use fairmesh_client::{ServiceHandle, proxy_support::SoleEndpoint};
use fairmesh_kernel::EndpointSlots;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::kernel::{attached::Attached, pooled::PooledConnection};

/// How long a request may wait until its service is published: an endpoint that takes longer to connect to is published later.
const PUBLISH_WAIT: Duration = Duration::from_millis(250);
/// How long a service that could not be published is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The entry of a service.
#[derive(Clone, Debug)]
pub(super) enum Publication {
    /// Connections to its endpoint exist, or are about to.
    Published(Arc<PublishedService>),
    /// Its endpoint could not be connected to, at this time.
    Failed(Instant),
}

/// A service whose requests the kernel sends.
#[derive(Debug)]
pub(super) struct PublishedService {
    pub(super) endpoint: SoleEndpoint,
    pub(super) slots: Arc<EndpointSlots>,
    /// Pooled connections. The service is published as long as there are any.
    connections: AtomicUsize,
    /// Whether a connection is being opened.
    is_opening: AtomicBool,
    /// Cancelled when the service is not published any more.
    pub(super) withdrawn: CancellationToken,
}

impl Publication {
    /// Whether a request of the service has been waiting for its response for this long.
    pub(super) fn has_waiting(&self, at_least: Duration) -> bool {
        matches!(self, Self::Published(service) if service.slots.has_waiting(at_least))
    }
}

impl Attached {
    /// Has the kernel send requests to this service, where they need no decision; opens a further connection where all are in use.
    pub(super) async fn publish(self: &Arc<Self>, handle: &ServiceHandle) {
        if self.stopped().is_cancelled() {
            return;
        }
        let publication = self.published().get(handle.name()).cloned();
        match publication {
            Some(Publication::Published(service)) => {
                if !service.slots.has_idle() {
                    service.open_another(self);
                }
            }
            Some(Publication::Failed(at)) if at.elapsed() < RETRY_AFTER => {}
            Some(Publication::Failed(_)) | None => self.begin(handle).await,
        }
    }

    async fn begin(self: &Arc<Self>, handle: &ServiceHandle) {
        let Some(sender) = self.sender() else { return };
        let Some(endpoint) = handle.sole_endpoint() else { return };
        // All are in use by other services.
        let Some(slots) = sender.reserve() else { return };
        let service = Arc::new(PublishedService {
            endpoint,
            slots: Arc::new(slots),
            connections: AtomicUsize::new(0),
            is_opening: AtomicBool::new(true),
            withdrawn: self.stopped().child_token(),
        });
        if !self.claim(handle, &service) {
            return;
        }
        let (attached, handle) = (Arc::clone(self), handle.clone());
        let (published, wait) = oneshot::channel();
        tokio::spawn(async move {
            if service.open(&attached).await.is_none() || !attached.insert(&service) {
                attached.published().insert(handle.name().clone(), Publication::Failed(Instant::now()));
                return service.withdrawn.cancel();
            }
            // The request may not wait any more.
            let _ = published.send(());
            service.wait_outdated(&handle).await;
            attached.remove(&handle, &service);
        });
        // It is published later if it takes longer.
        let _ = timeout(PUBLISH_WAIT, wait).await;
    }

    /// Makes the entry of a service, unless another task just did.
    fn claim(&self, handle: &ServiceHandle, service: &Arc<PublishedService>) -> bool {
        let mut published = self.published();
        if matches!(published.get(handle.name()), Some(Publication::Published(_))) {
            return false;
        }
        published.insert(handle.name().clone(), Publication::Published(Arc::clone(service)));
        true
    }

    fn insert(&self, service: &PublishedService) -> bool {
        self.sender().is_some_and(|sender| sender.publish(service.endpoint.authority(), &service.slots))
    }

    fn remove(&self, handle: &ServiceHandle, service: &PublishedService) {
        if let Some(sender) = self.sender() {
            sender.unpublish(service.endpoint.authority());
        }
        service.withdrawn.cancel();
        self.published().remove(handle.name());
    }
}

impl PublishedService {
    /// Waits until requests need a decision or another endpoint, no connection is left, or the kernel is to send none.
    async fn wait_outdated(&self, handle: &ServiceHandle) {
        let mut current = None;
        while current.as_ref().is_none_or(|current: &SoleEndpoint| current.is(&self.endpoint)) {
            tokio::select! {
                () = current.as_ref().unwrap_or(&self.endpoint).outdated() => {}
                () = self.withdrawn.cancelled() => return,
            }
            current = handle.sole_endpoint();
            if current.is_none() {
                return;
            }
        }
    }

    /// Opens a connection; `None` where the endpoint cannot be connected to, or has enough connections.
    async fn open(self: &Arc<Self>, attached: &Arc<Attached>) -> Option<()> {
        let opened = self.try_open(attached).await;
        self.is_opening.store(false, Release);
        opened
    }

    async fn try_open(self: &Arc<Self>, attached: &Arc<Attached>) -> Option<()> {
        let connection = self.endpoint.connect().await.ok()?;
        // Refused where the endpoint has closed it at once.
        let slot = self.slots.add(&connection.stream).ok().flatten()?;
        self.connections.fetch_add(1, AcqRel);
        let pooled = PooledConnection::new(Arc::clone(attached), Arc::clone(self), slot, connection);
        tokio::spawn(pooled.run());
        Some(())
    }

    /// Opens a further connection in the background.
    fn open_another(self: &Arc<Self>, attached: &Arc<Attached>) {
        if !self.is_opening.swap(true, AcqRel) {
            let (service, attached) = (Arc::clone(self), Arc::clone(attached));
            tokio::spawn(async move { service.open(&attached).await });
        }
    }

    /// A pooled connection has ended.
    pub(super) fn closed(&self) {
        if self.connections.fetch_sub(1, AcqRel) == 1 {
            self.withdrawn.cancel();
        }
    }
}
