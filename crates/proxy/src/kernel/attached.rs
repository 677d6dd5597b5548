//! What the proxy shares with the eBPF programs while these are attached.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use fairmesh_client::{ServiceName, proxy_support::SentRequest};
use fairmesh_kernel::{Destination, KernelError, KernelSender, ProxyMaps};
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
};
use tokio_util::sync::CancellationToken;

use crate::kernel::published::Publication;

/// How long a request waits for its response before its caller's connection applies timeouts to it.
const OVERDUE: Duration = Duration::from_millis(100);

/// A request that the kernel sent, for the connection of its caller.
#[derive(Debug)]
pub(crate) struct KernelRequest {
    /// All of it, as the caller sent it.
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent: SentRequest,
}

/// Callers by the cookies of their sockets.
type Callers = HashMap<u64, mpsc::Sender<KernelRequest>>;

/// The maps, and the tables by which their contents are understood.
#[derive(Debug)]
pub(crate) struct Attached {
    maps: ProxyMaps,
    sender: OnceLock<KernelSender>,
    callers: Mutex<Callers>,
    published: Mutex<HashMap<ServiceName, Publication>>,
    /// Wakes pooled connections with requests that wait for a response.
    pub(super) overdue: Notify,
    stopped: CancellationToken,
}

impl Attached {
    /// Has connections redirected to this listener.
    pub(super) fn register(pins: &Path, listener: &TcpListener) -> Result<Self, KernelError> {
        Ok(Self {
            maps: ProxyMaps::register(pins, listener)?,
            sender: OnceLock::new(),
            callers: Mutex::default(),
            published: Mutex::default(),
            overdue: Notify::new(),
            stopped: CancellationToken::new(),
        })
    }

    /// Has the kernel send requests too, unless another proxy, as one that drains, still does.
    pub(super) fn open_sender(&self, pins: &Path) -> Result<(), KernelError> {
        if self.sender.get().is_none()
            && let Some(sender) = KernelSender::open(pins)?
        {
            // Set by this task alone.
            let _ = self.sender.set(sender);
        }
        Ok(())
    }

    /// The maps by which the kernel sends requests. `None` until this proxy has them.
    pub(super) fn sender(&self) -> Option<&KernelSender> {
        self.sender.get()
    }

    /// The destination of a connection from this address. `None` if it was not redirected.
    pub(super) fn take(&self, caller: SocketAddr) -> Option<Destination> {
        self.maps.take(caller)
    }

    /// Hands requests without a response over to the connections of their callers.
    pub(super) fn wake_overdue(&self) {
        let is_overdue = |publication: &Publication| publication.has_waiting(OVERDUE);
        if self.published().values().any(is_overdue) {
            self.overdue.notify_waiters();
        }
    }

    /// Has the kernel send no further requests. Those in flight get their responses.
    pub(super) fn stop(&self) {
        self.stopped.cancel();
    }

    pub(super) fn stopped(&self) -> &CancellationToken {
        &self.stopped
    }

    pub(super) fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn published(&self) -> MutexGuard<'_, HashMap<ServiceName, Publication>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
