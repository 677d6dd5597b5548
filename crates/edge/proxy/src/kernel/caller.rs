//! A caller whose requests the kernel may send, and its connection to the proxy.

use std::{
    future::Future as _,
    mem,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use fairmesh_calls::forwarding::SentRequest;
use fairmesh_edge::{
    forward::{connection_info::ConnectionInfo, forwarder::Forwarder},
    services::target::Target,
};
use fairmesh_kernel::{Destination, MAX_REQUEST};
use http::{Request, header};
use tokio::{
    net::TcpStream,
    sync::mpsc,
    time::{Instant, Sleep, sleep},
};

use crate::kernel::{
    attached::{Attached, KernelRequest},
    served_caller::ServedCaller,
};

/// How often it is looked whether a caller that pipelines has read what was moved to it: at first, and for one that reads nothing.
const LOOK_INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// A caller whose connection was redirected.
#[derive(Debug)]
pub(crate) struct KernelCaller {
    attached: Arc<Attached>,
    /// Whether its cgroup may reach services alone.
    pub(crate) only_services: bool,
    /// Whether its data passes TCP alone.
    by_tcp: bool,
    /// Until its connection is served; `None` where its data passes TCP alone.
    unlinked: Mutex<Option<Box<UnlinkedCaller>>>,
}

/// A caller whose requests the kernel does not send yet: the proxy that is being replaced has the maps until its last one has its response.
#[derive(Debug)]
pub(crate) struct UnlinkedCaller {
    attached: Arc<Attached>,
    cookie: u64,
    address: SocketAddr,
    /// Its connection, for responses that do not come from the task that serves it.
    socket: Option<OwnedFd>,
    /// Bytes that were sent to it; `None` while some were not counted.
    sent: Option<u64>,
}

/// The requests that the kernel sends of one caller, while its connection is served. One is in flight at most.
#[derive(Debug)]
pub(crate) struct CallerLink {
    attached: Arc<Attached>,
    caller: Arc<ServedCaller>,
    requests: mpsc::Receiver<KernelRequest>,
    /// The request that is handled once the caller has read what was moved to it.
    next: Option<KernelRequest>,
    /// Until it is looked again whether it has, and for how long.
    look: Option<(Pin<Box<Sleep>>, Duration)>,
    is_withdrawn: bool,
    /// The request that is handled now, if the kernel sent it.
    pub(crate) current: Option<SentRequest>,
}

impl UnlinkedCaller {
    /// Has the kernel send further requests of this connection. `None` while it sends none for this proxy.
    pub(crate) fn link(&mut self) -> Option<Box<CallerLink>> {
        let attached = Arc::clone(&self.attached);
        let sender = attached.sender().filter(|_| !attached.stopped().is_cancelled())?;
        let (requests, received) = mpsc::channel(1);
        let link = sender.add_caller(self.cookie, self.address, self.socket.as_ref().map(AsFd::as_fd))?;
        let caller = Arc::new(ServedCaller::new(link, self.address, self.socket.take(), requests, self.sent));
        attached.callers().insert(self.cookie, Arc::clone(&caller));
        Some(Box::new(CallerLink {
            attached,
            caller,
            requests: received,
            next: None,
            look: None,
            is_withdrawn: false,
            current: None,
        }))
    }

    /// Counts bytes that the proxy has sent; `None` for a number that it does not know.
    pub(crate) fn note_sent(&mut self, bytes: Option<usize>) {
        add_sent(&mut self.sent, bytes);
    }
}

/// Counts bytes; `None` for a number that is not known.
pub(super) fn add_sent(sent: &mut Option<u64>, bytes: Option<usize>) {
    *sent = sent.zip(bytes).map(|(sent, bytes)| sent + bytes as u64);
}

impl KernelCaller {
    pub(super) fn new(
        attached: Arc<Attached>,
        destination: Destination,
        address: SocketAddr,
        stream: &TcpStream,
    ) -> Self {
        let Destination { cookie, only_services, by_tcp, .. } = destination;
        let unlinked = || UnlinkedCaller {
            attached: Arc::clone(&attached),
            cookie,
            address,
            // Without it, all responses come from the task.
            socket: stream.as_fd().try_clone_to_owned().ok(),
            sent: Some(0),
        };
        let unlinked = Mutex::new((!by_tcp).then(|| Box::new(unlinked())));
        Self { attached, only_services, by_tcp, unlinked }
    }

    /// What has the kernel send requests of the connection, for the task that serves it.
    pub(crate) fn take_unlinked(&self) -> Option<Box<UnlinkedCaller>> {
        self.unlinked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The service of a request that the kernel left to the proxy, if the kernel may send requests like it.
    pub(crate) fn target<B>(
        &self,
        request: &Request<B>,
        forwarder: &Forwarder,
        client_info: &ConnectionInfo,
    ) -> Option<Arc<Target>> {
        let is_changed = forwarder.observer.adds_headers() || forwarder.max_body < MAX_REQUEST as u64;
        if self.by_tcp || is_changed || request.extensions().get::<SentRequest>().is_some() {
            return None;
        }
        let host = request.headers().get(header::HOST)?.to_str().ok()?;
        forwarder.target_of(host, client_info).ok()
    }

    /// Has the kernel send further requests to this service, and to the backends of its splits.
    pub(crate) async fn publish(&self, target: &Target, forwarder: &Forwarder) {
        self.attached.publish(&target.handle).await;
        for backend in self.attached.backends(target.handle.name()) {
            if let Ok(target) = forwarder.services.by_name(&backend) {
                self.attached.publish(&target.handle).await;
            }
        }
    }
}

impl CallerLink {
    /// Waits for the next request that the kernel sent, whose response has begun or is overdue, until the one before has its response.
    pub(crate) fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        ready!(self.caller.poll_not_relaying(context));
        if self.next.is_none() {
            // The sender is kept until the link is dropped.
            self.next = ready!(self.requests.poll_recv(context));
        }
        if self.next.is_some() {
            ready!(self.poll_read_moved(context));
        }
        let Some(KernelRequest { bytes, sent }) = self.next.take() else { return Poll::Pending };
        self.caller.note_taken();
        self.current = Some(sent);
        Poll::Ready(bytes)
    }

    /// Pending while the kernel has sent a request that has no response, or has moved one that the caller has not read. What the caller
    /// sent to the proxy comes after it.
    pub(crate) fn poll_none_in_flight(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.caller.poll_none_in_flight(context));
        self.poll_read_moved(context)
    }

    /// Ready once the caller has read all responses that were moved to it. Pending at most once for a caller, which pipelines then.
    fn poll_read_moved(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.caller.link.has_read_moved() {
            let [first, longest] = LOOK_INTERVALS;
            let (sleeping, interval) = self.look.get_or_insert_with(|| (Box::pin(sleep(first)), first));
            ready!(sleeping.as_mut().poll(context));
            *interval = (*interval * 2).min(longest);
            sleeping.as_mut().reset(Instant::now() + *interval);
        }
        self.look = None;
        Poll::Ready(())
    }

    /// The proxy handles no request besides those in the first `bytes` of the connection: the kernel may send the next one. `length` is
    /// that of the response that is about to be sent, if it is known.
    pub(crate) fn set_served(&mut self, bytes: u64, length: Option<u64>) {
        if self.attached.stopped().is_cancelled() {
            return;
        }
        self.caller.settle(length);
        self.caller.link.set_served(bytes);
        // The other order would miss a stop in between.
        if self.attached.stopped().is_cancelled() {
            self.caller.link.withdraw();
        }
        self.is_withdrawn = false;
    }

    /// As [`set_served`](Self::set_served) after the last response, unless the connection is about to be closed.
    pub(crate) fn note_idle(&mut self, bytes: u64) {
        if !self.is_withdrawn {
            self.set_served(bytes, Some(0));
        }
    }

    /// Counts bytes that the proxy has sent; `None` for a number that it does not know.
    pub(crate) fn note_sent(&mut self, bytes: Option<usize>) {
        self.caller.note_sent(bytes);
    }

    /// When the last call ended whose response did not come from the task of this connection.
    pub(crate) fn last_completed(&self) -> Option<Instant> {
        self.caller.last_completed()
    }

    /// Whether the idle connection may be closed. The first time it may not: the kernel may have begun to send a request before it
    /// was withdrawn.
    pub(crate) fn may_close(&mut self) -> bool {
        self.caller.link.withdraw();
        mem::replace(&mut self.is_withdrawn, true) && !self.caller.is_in_flight()
    }
}

impl Drop for CallerLink {
    fn drop(&mut self) {
        self.caller.link.withdraw();
        let cookie = self.caller.link.cookie();
        // Before it is missed, unless none of its calls will be recorded any more.
        if !self.attached.released.is_cancelled() {
            self.attached.departed().insert(cookie, self.caller.address);
        }
        self.attached.callers().remove(&cookie);
    }
}
