//! A caller whose requests the kernel may send, and the caller's connection to the proxy.

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
    attached_maps::{Attached, KernelRequest},
    served_caller::ServedCaller,
};

/// Intervals of checks whether a pipelining caller has read the moved responses: the first interval, and the longest,
/// for a caller that reads nothing.
const LOOK_INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// A caller whose connection was redirected.
#[derive(Debug)]
pub(crate) struct KernelCaller {
    attached: Arc<Attached>,
    /// Whether the caller's cgroup may reach only services.
    pub(crate) only_services: bool,
    /// Whether all of the caller's data goes through TCP.
    by_tcp: bool,
    /// State until the connection is served. `None` if all data goes through TCP.
    unlinked: Mutex<Option<Box<UnlinkedCaller>>>,
}

/// A caller whose requests the kernel does not send yet, because the predecessor holds the maps until its last
/// request is answered.
#[derive(Debug)]
pub(crate) struct UnlinkedCaller {
    attached: Arc<Attached>,
    cookie: u64,
    address: SocketAddr,
    /// Descriptor of the caller's connection, for responses that are sent outside of its task.
    socket: Option<OwnedFd>,
    /// Number of bytes sent to the caller; `None` if unknown.
    sent: Option<u64>,
}

/// Requests that the kernel sends for one caller while the caller's connection is served. At most one is in flight.
#[derive(Debug)]
pub(crate) struct CallerLink {
    attached: Arc<Attached>,
    caller: Arc<ServedCaller>,
    requests: mpsc::Receiver<KernelRequest>,
    /// Request to handle once the caller has read the moved responses.
    next: Option<KernelRequest>,
    /// Timer of the next check whether the caller has read them, and the interval of checks.
    look: Option<(Pin<Box<Sleep>>, Duration)>,
    is_withdrawn: bool,
    /// The request being handled, if the kernel sent it.
    pub(crate) current: Option<SentRequest>,
}

impl UnlinkedCaller {
    /// Lets the kernel send further requests of this connection. `None` if the kernel sends no requests for this
    /// proxy.
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

    /// Adds to the number of bytes that the proxy has sent; `None` means an unknown number.
    pub(crate) fn note_sent(&mut self, bytes: Option<usize>) {
        add_sent(&mut self.sent, bytes);
    }
}

/// Adds to a number of bytes; `None` means an unknown number.
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
            // If the descriptor cannot be duplicated, the task sends all responses.
            socket: stream.as_fd().try_clone_to_owned().ok(),
            sent: Some(0),
        };
        let unlinked = Mutex::new((!by_tcp).then(|| Box::new(unlinked())));
        Self { attached, only_services, by_tcp, unlinked }
    }

    /// Takes the state from which the connection's task creates the caller's link. `None` if all data goes through
    /// TCP.
    pub(crate) fn take_unlinked(&self) -> Option<Box<UnlinkedCaller>> {
        self.unlinked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Service of a request that the kernel left to the proxy, if the kernel may send similar requests.
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

    /// Lets the kernel send further requests to this service and to the backends of its splits.
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
    /// Waits for the next kernel request whose response has begun or is overdue, and until the caller has
    /// received the previous response.
    pub(crate) fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        if self.next.is_none() {
            // Never `None`: the sender lives until the link is dropped.
            self.next = ready!(self.requests.poll_recv(context));
        }
        // Checked only now: the kernel may have sent this request before the relay of the previous response
        // began.
        ready!(self.caller.poll_not_relaying(context));
        if self.next.is_some() {
            ready!(self.poll_read_moved(context));
        }
        let Some(KernelRequest { bytes, sent }) = self.next.take() else { return Poll::Pending };
        self.caller.note_taken();
        self.current = Some(sent);
        Poll::Ready(bytes)
    }

    /// Pending while a kernel request is unanswered or a moved response is unread, because data that the caller sent
    /// to the proxy comes after both.
    pub(crate) fn poll_none_in_flight(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.caller.poll_none_in_flight(context));
            ready!(self.poll_read_moved(context));
            // A response that the kernel failed to move is in flight again.
            if !self.caller.is_in_flight() {
                return Poll::Ready(());
            }
        }
    }

    /// Ready once the caller has read all moved responses. A caller for which this is ever pending counts as
    /// pipelining from then on.
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

    /// Reports that the proxy has served the first `bytes` of the connection, so that the kernel may send the next request.
    /// `length` is the length of the response about to be sent, if known.
    pub(crate) fn set_served(&mut self, bytes: u64, length: Option<u64>) {
        if self.attached.stopped().is_cancelled() {
            return;
        }
        self.caller.settle(length);
        self.caller.link.set_served(bytes);
        // Checked after the report: in the reverse order, a stop in between would be missed.
        if self.attached.stopped().is_cancelled() {
            self.caller.link.withdraw();
        }
        self.is_withdrawn = false;
    }

    /// Like [`set_served`](Self::set_served) after the last response, unless the connection is about to be closed.
    pub(crate) fn note_idle(&mut self, bytes: u64) {
        if !self.is_withdrawn {
            self.set_served(bytes, Some(0));
        }
    }

    /// Adds to the number of bytes that the proxy has sent; `None` means an unknown number.
    pub(crate) fn note_sent(&mut self, bytes: Option<usize>) {
        self.caller.note_sent(bytes);
    }

    /// Time at which the last call ended whose response bypassed this connection's task.
    pub(crate) fn last_completed(&self) -> Option<Instant> {
        self.caller.last_completed()
    }

    /// Whether the idle connection may be closed. Returns `false` the first time, because the kernel may have
    /// started a request before the withdrawal.
    pub(crate) fn may_close(&mut self) -> bool {
        self.caller.link.withdraw();
        mem::replace(&mut self.is_withdrawn, true) && !self.caller.is_in_flight()
    }
}

impl Drop for CallerLink {
    fn drop(&mut self) {
        self.caller.link.withdraw();
        let cookie = self.caller.link.cookie();
        // Noted before the caller is removed, unless no more of its calls will be recorded.
        if !self.attached.released.is_cancelled() {
            self.attached.departed().insert(cookie, self.caller.address);
        }
        self.attached.callers().remove(&cookie);
    }
}
