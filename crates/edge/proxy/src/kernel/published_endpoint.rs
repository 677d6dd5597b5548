//! Endpoints to which the kernel sends requests.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use fairmesh_calls::{
    ServiceName,
    forwarding::{EndpointConnection, ExportedEndpoint},
};
use fairmesh_kernel::{EndpointSlots, Permit, program_clock};
use fairmesh_model::SpiffeId;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::kernel::{
    attached_maps::Attached,
    local_permit::{self, LocalProgram, LocalWay},
    pooled_connection::PooledConnection,
    published_services::RETRY_AFTER,
    sidecar_bypass_calls::SidecarBypassCounter,
};

/// Time limit of the first look at the way to an endpoint.
const WAY_TIMEOUT: Duration = Duration::from_secs(2);

/// Pooled connections of one service.
#[derive(Debug)]
pub(super) struct ServiceConnections {
    service: ServiceName,
    open: AtomicUsize,
    /// Cancelled when the service is no longer published.
    pub(super) withdrawn: CancellationToken,
}

/// An endpoint of a published service.
#[derive(Debug)]
pub(super) struct PublishedEndpoint {
    pub(super) endpoint: ExportedEndpoint,
    pub(super) slots: Arc<EndpointSlots>,
    /// Time at which the endpoint was published, by the programs' clock.
    pub(super) published_at: Duration,
    connections: Arc<ServiceConnections>,
    /// Whether a connection is being opened.
    is_opening: AtomicBool,
    /// Cancelled when the endpoint leaves the service, or the service is withdrawn.
    pub(super) withdrawn: CancellationToken,
    /// Whether the policy lets the kernel carry requests to endpoints with mutual TLS.
    may_take_kernel: AtomicBool,
    /// The way to an endpoint with mutual TLS within this machine.
    pub(super) way: watch::Sender<LocalWay>,
    /// Whether a task asks for that way.
    is_followed: AtomicBool,
    /// Counts the requests that the kernel sends to the program behind the endpoint. Set before the first of them.
    pub(super) in_place: OnceLock<SidecarBypassCounter>,
    /// Notified when the program behind the endpoint cannot be used although the endpoint permits it.
    pub(super) unusable: Notify,
}

impl ServiceConnections {
    pub(super) fn new(service: ServiceName, withdrawn: CancellationToken) -> Self {
        Self { service, open: AtomicUsize::new(0), withdrawn }
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
            may_take_kernel: AtomicBool::new(false),
            way: watch::Sender::default(),
            is_followed: AtomicBool::new(false),
            in_place: OnceLock::new(),
            unusable: Notify::new(),
        }
    }

    /// Notes whether the policy lets the kernel carry requests to endpoints with mutual TLS.
    pub(super) fn set_may_take_kernel(&self, may: bool) {
        self.may_take_kernel.store(may, Release);
    }

    /// Counts the requests in place of mutual TLS from now on, in the name of this caller.
    pub(super) fn count_in_place(&self, attached: &Attached, caller: &SpiffeId) {
        let (service, observer) = (&self.connections.service, &attached.forwarder.observer);
        self.in_place.get_or_init(|| attached.metrics.in_place.counter(service, caller, observer));
    }

    pub(super) fn may_take_kernel(&self) -> bool {
        self.may_take_kernel.load(Acquire)
    }

    /// Opens a plaintext connection: to the endpoint, or to the program behind one with mutual TLS that permits it. `None` if
    /// requests need mutual TLS.
    async fn connect(
        self: &Arc<Self>,
        attached: &Arc<Attached>,
    ) -> Option<(EndpointConnection, Option<Arc<Permit>>)> {
        if let Some(program) = self.permitted(attached).await {
            let connection = self.endpoint.connect_program(program.address).await.ok()?;
            if let Err(error) = program.check(&connection.stream, attached).await {
                tracing::debug!(address = %program.address, %error, "the kernel sends this program nothing");
                self.unusable.notify_one();
                return None;
            }
            return Some((connection, Some(program.permit)));
        }
        // Such an endpoint accepts no plaintext of a process with a certificate.
        if self.endpoint.target().identity.is_some() && attached.forwarder.services.mesh.identity().is_some()
        {
            return None;
        }
        Some((self.endpoint.connect().await.ok()?, None))
    }

    /// The program behind an endpoint with mutual TLS, if the kernel may send it requests.
    async fn permitted(self: &Arc<Self>, attached: &Arc<Attached>) -> Option<LocalProgram> {
        let target = self.endpoint.target();
        let is_pod = target.pod.is_some();
        if target.identity.is_none()
            || is_pod
            || !self.may_take_kernel()
            || !local_permit::is_here(target.address)
        {
            return None;
        }
        if !self.is_followed.swap(true, AcqRel) {
            attached.tasks.spawn(local_permit::follow(Arc::clone(self), Arc::clone(attached)));
        }
        let mut way = self.way.subscribe();
        let known = timeout(WAY_TIMEOUT, way.wait_for(|way| !matches!(way, LocalWay::Unknown))).await.ok()?;
        match &*known.ok()? {
            LocalWay::Permitted(program) => Some(program.clone()),
            LocalWay::Unknown | LocalWay::Refused => None,
        }
    }

    /// Opens a connection; `None` if the endpoint cannot be reached or has enough connections.
    pub(super) async fn open(self: &Arc<Self>, attached: &Arc<Attached>) -> Option<()> {
        let (connection, permit) = self.connect(attached).await?;
        // Fails if the endpoint closed the connection at once.
        let ends = [connection.stream.local_addr().ok()?, connection.stream.peer_addr().ok()?];
        let slot = self.slots.add(&connection.stream, ends, permit.as_deref()).ok().flatten()?;
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
