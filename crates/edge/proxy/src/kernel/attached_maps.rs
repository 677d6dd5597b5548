//! State shared with the eBPF programs while they are attached.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use fairmesh_calls::{
    ServiceName,
    forwarding::{EndpointStats, SentRequest},
};
use fairmesh_edge::forward::forwarder::Forwarder;
use fairmesh_kernel::{ContainerSocket, Destination, KernelError, KernelSender, ProxyMaps};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::kernel::{
    container_listeners::ContainerListener, metrics::KernelMetrics, published_endpoint::PublishedEndpoint,
    published_services::Publication, served_caller::ServedCaller,
};

/// Time that a request may wait for its response before the caller's connection takes over and applies timeouts.
const OVERDUE: Duration = Duration::from_millis(100);

/// Time for which the maps are kept after the last request, because a preempted program may still use values that it
/// read from them.
const RELEASE_AFTER: Duration = Duration::from_secs(1);

/// A request that the kernel sent, in the form in which its caller's connection receives it.
#[derive(Debug)]
pub(crate) struct KernelRequest {
    /// The whole request as the caller sent it. If the body was sent only to the server, zeros stand for it; the
    /// request is then never sent to another server.
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent: SentRequest,
}

/// Where connections of attached cgroups are redirected to.
#[derive(Debug)]
pub(crate) struct RedirectTarget<'a> {
    pub(crate) listener: &'a TcpListener,
    pub(crate) only_services: bool,
    /// Where listeners of containers are taken; `None` if they are not.
    pub(crate) containers: Option<ContainerSocket>,
}

/// Callers by their sockets' cookies.
type Callers = HashMap<u64, Arc<ServedCaller>>;

/// The maps, and tables that translate their contents to services, endpoints and callers.
#[derive(Debug)]
pub(crate) struct Attached {
    maps: ProxyMaps,
    /// Observes and counts calls as it does for calls that the proxy itself forwards.
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) metrics: Arc<KernelMetrics>,
    sender: OnceLock<KernelSender>,
    callers: Mutex<Callers>,
    /// Addresses of disconnected callers by cookie, until their last calls are recorded.
    departed: Mutex<HashMap<u64, SocketAddr>>,
    published: Mutex<HashMap<ServiceName, Publication>>,
    /// Notifies when a service is published or withdrawn, since splits of other services may use it.
    pub(super) services_changed: watch::Sender<()>,
    /// Wakes pooled connections whose requests wait for a response.
    pub(super) overdue: Notify,
    /// Endpoints by block of statistics and index.
    endpoints: Mutex<HashMap<(u32, u32), Weak<PublishedEndpoint>>>,
    /// Statistics of services that count in shared memory.
    sharing: Mutex<Vec<Weak<EndpointStats>>>,
    /// Tasks of published services and pooled connections.
    pub(super) tasks: TaskTracker,
    stopped: CancellationToken,
    /// What closes the listeners in the network namespaces of containers, by the namespaces' numbers.
    containers: Mutex<HashMap<u64, CancellationToken>>,
    /// Records calls whose responses the kernel sent.
    pub(super) recorder: TaskTracker,
    /// Cancelled once the kernel sends no more requests for this proxy.
    pub(super) released: CancellationToken,
}

impl Attached {
    /// Redirects the connections of attached cgroups to this listener.
    pub(super) fn register(
        pins: &Path,
        to: &RedirectTarget<'_>,
        (forwarder, metrics): (&Arc<Forwarder>, &Arc<KernelMetrics>),
    ) -> Result<Self, KernelError> {
        Ok(Self {
            maps: ProxyMaps::register(pins, to.listener, to.only_services, to.containers)?,
            forwarder: Arc::clone(forwarder),
            metrics: Arc::clone(metrics),
            sender: OnceLock::new(),
            callers: Mutex::default(),
            departed: Mutex::default(),
            published: Mutex::default(),
            services_changed: watch::Sender::new(()),
            overdue: Notify::new(),
            endpoints: Mutex::default(),
            sharing: Mutex::default(),
            tasks: TaskTracker::new(),
            stopped: CancellationToken::new(),
            containers: Mutex::default(),
            recorder: TaskTracker::new(),
            released: CancellationToken::new(),
        })
    }

    /// Lets the kernel send requests too, unless another proxy, such as a draining one, still holds the sender's
    /// maps. Returns whether the kernel starts to send requests.
    pub(super) fn open_sender(&self, pins: &Path) -> Result<bool, KernelError> {
        if self.sender.get().is_some() {
            return Ok(false);
        }
        let Some(sender) = KernelSender::open(pins)? else { return Ok(false) };
        // Only this task sets the value.
        Ok(self.sender.set(sender).is_ok())
    }

    /// The maps through which the kernel sends requests; `None` until this proxy holds them.
    pub(super) fn sender(&self) -> Option<&KernelSender> {
        self.sender.get()
    }

    /// The original destination of a connection from this address. `None` if the connection was not
    /// redirected.
    pub(super) fn take(&self, stream: &TcpStream, caller: SocketAddr) -> Option<Destination> {
        self.maps.take(stream, caller)
    }

    /// Redirects connections of a container to this listener, in place of an earlier one of the same network namespace.
    pub(super) fn add_listener(&self, container: &mut ContainerListener) -> Result<(), KernelError> {
        let namespace = self.maps.add_listener(&container.listener)?;
        container.closed = self.stopped.child_token();
        let mut containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        containers.retain(|_, closed| !closed.is_cancelled());
        if let Some(replaced) = containers.insert(namespace, container.closed.clone()) {
            replaced.cancel();
        }
        Ok(())
    }

    /// Hands unanswered requests over to their callers' connections.
    pub(super) fn wake_overdue(&self) {
        let is_overdue = |publication: &Publication| publication.has_waiting(OVERDUE);
        if self.published().values().any(is_overdue) {
            self.overdue.notify_waiters();
        }
    }

    /// Stops the kernel from sending further requests. Requests in flight still get their responses.
    pub(super) fn stop(&self) {
        self.stopped.cancel();
        self.callers().values().for_each(|caller| caller.link.withdraw());
    }

    /// Releases the maps to another proxy once the kernel's last request has its response. Call this after
    /// [`stop`](Self::stop).
    pub(super) async fn release(self: Arc<Self>) {
        let Some(sender) = self.sender() else { return };
        self.tasks.close();
        self.tasks.wait().await;
        sleep(RELEASE_AFTER).await;
        self.released.cancel();
        // The last calls are counted in the block in which they began.
        self.recorder.close();
        self.recorder.wait().await;
        for stats in self.sharing().drain(..) {
            stats.upgrade().iter().for_each(|stats| stats.unshare(|block| sender.counts_in(block)));
        }
        sender.release();
    }

    fn sharing(&self) -> MutexGuard<'_, Vec<Weak<EndpointStats>>> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint at this block and index.
    pub(super) fn endpoint(&self, key: (u32, u32)) -> Option<Arc<PublishedEndpoint>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).get(&key)?.upgrade()
    }

    pub(super) fn add_endpoint(&self, key: (u32, u32), endpoint: &Arc<PublishedEndpoint>) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
        endpoints.insert(key, Arc::downgrade(endpoint));
    }

    /// Notes that the statistics of a service are in shared memory.
    pub(super) fn note_sharing(&self, stats: &Arc<EndpointStats>) {
        let mut sharing = self.sharing();
        sharing.retain(|one| one.strong_count() > 0 && !std::ptr::eq(one.as_ptr(), Arc::as_ptr(stats)));
        sharing.push(Arc::downgrade(stats));
    }

    pub(super) fn stopped(&self) -> &CancellationToken {
        &self.stopped
    }

    pub(super) fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn departed(&self) -> MutexGuard<'_, HashMap<u64, SocketAddr>> {
        self.departed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn published(&self) -> MutexGuard<'_, HashMap<ServiceName, Publication>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
