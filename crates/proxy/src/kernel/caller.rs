//! A caller whose requests the kernel may send, and its connection to the proxy.

use std::{
    mem,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use fairmesh_calls::forwarding::SentRequest;
use fairmesh_kernel::{MAX_REQUEST, Settled};
use http::{Request, header};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    forward::{connection_info::ConnectionInfo, forwarder::Forwarder, target::Target},
    kernel::attached::{Attached, CompletedCalls, KernelRequest, ServedCaller},
};

/// A caller whose connection was redirected.
#[derive(Debug)]
pub(crate) struct KernelCaller {
    attached: Arc<Attached>,
    cookie: u64,
    address: SocketAddr,
}

/// The requests that the kernel sends of one caller, while its connection is served. One is in flight at most.
#[derive(Debug)]
pub(crate) struct CallerLink {
    attached: Arc<Attached>,
    cookie: u64,
    requests: mpsc::Receiver<KernelRequest>,
    /// Requests received.
    received: u64,
    /// Bytes that the proxy has served, and what it has sent then, as the kernel knows it.
    served: Option<(u64, Option<Settled>)>,
    /// Bytes that the proxy has sent; `None` since some were sent that it did not count.
    sent: Option<u64>,
    completed: Arc<CompletedCalls>,
    is_withdrawn: bool,
    /// The request that is handled now, if the kernel sent it.
    pub(crate) current: Option<SentRequest>,
}

impl KernelCaller {
    pub(super) fn new(attached: Arc<Attached>, cookie: u64, address: SocketAddr) -> Self {
        Self { attached, cookie, address }
    }

    /// Has the kernel send further requests of this connection, and the responses of those that need not be `observed` too. `None` while it
    /// sends none.
    pub(crate) fn link(&self, observed: bool) -> Option<Box<CallerLink>> {
        let (attached, cookie) = (Arc::clone(&self.attached), self.cookie);
        let (sender, requests) = mpsc::channel(1);
        let completed = Arc::new(CompletedCalls::new());
        let caller =
            ServedCaller { address: self.address, requests: sender, completed: Arc::clone(&completed) };
        attached.callers().insert(cookie, caller);
        let link = CallerLink {
            attached,
            cookie,
            requests,
            received: 0,
            served: None,
            // Unknown, the kernel sends no response.
            sent: (!observed).then_some(0),
            completed,
            is_withdrawn: false,
            current: None,
        };
        // Dropped, it is removed again.
        link.attached
            .sender()
            .filter(|_| !link.attached.stopped().is_cancelled())?
            .add_caller(cookie)
            .then(|| Box::new(link))
    }

    /// The service of a request that the kernel left to the proxy, if the kernel may send requests like it.
    pub(crate) fn target<B>(
        &self,
        request: &Request<B>,
        forwarder: &Forwarder,
        client_info: &ConnectionInfo,
    ) -> Option<Arc<Target>> {
        let is_changed = forwarder.observer.adds_headers() || forwarder.max_body < MAX_REQUEST as u64;
        if is_changed || request.extensions().get::<SentRequest>().is_some() {
            return None;
        }
        let host = request.headers().get(header::HOST)?.to_str().ok()?;
        forwarder.target_of(host, client_info).ok()
    }

    /// Has the kernel send further requests to this service, and to the backends of its splits.
    pub(crate) async fn publish(&self, target: &Target, forwarder: &Forwarder) {
        self.attached.publish(&target.handle).await;
        for backend in self.attached.backends(target.handle.name()) {
            if let Ok(target) = forwarder.target_by_name(&backend) {
                self.attached.publish(&target.handle).await;
            }
        }
    }
}

impl CallerLink {
    /// Waits for the next request that the kernel sent, whose response has begun or is overdue.
    pub(crate) fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        match self.requests.poll_recv(context) {
            Poll::Ready(Some(KernelRequest { bytes, sent })) => {
                self.received += 1;
                self.current = Some(sent);
                Poll::Ready(bytes)
            }
            // The sender is kept until the link is dropped.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Pending while the kernel has sent a request whose response has neither been received here nor sent by the kernel. What the
    /// caller sent to the proxy comes after it.
    pub(crate) fn poll_none_in_flight(&self, context: &Context<'_>) -> Poll<()> {
        if !self.is_in_flight() {
            return Poll::Ready(());
        }
        self.completed.waker.register(context.waker());
        // The other order would miss one that ends in between.
        if self.is_in_flight() { Poll::Pending } else { Poll::Ready(()) }
    }

    fn is_in_flight(&self) -> bool {
        self.attached.sender().is_some_and(|sender| sender.sent(self.cookie) > self.received)
    }

    /// The proxy handles no request besides those in the first `bytes` of the connection: the kernel may send the next one. `length` is
    /// that of the response that is about to be sent, if it is known.
    pub(crate) fn set_served(&mut self, bytes: u64, length: Option<u64>) {
        let has_local = self.attached.sender().is_some_and(|sender| sender.has_local_servers());
        let received = self.sent.zip(length).map(|(sent, length)| sent + length).filter(|_| has_local);
        let settled = received.map(|received| Settled { received, requests: self.received });
        let is_new = self.served.is_none_or(|(served, known)| {
            served != bytes || settled.is_some_and(|settled| known != Some(settled))
        });
        if is_new {
            self.tell(bytes, settled);
        }
    }

    /// As [`set_served`](Self::set_served) after the last response, unless the connection is about to be closed.
    pub(crate) fn note_idle(&mut self, bytes: u64) {
        if !self.is_withdrawn {
            self.set_served(bytes, Some(0));
        }
    }

    /// Counts bytes that the proxy has sent; `None` for a number that it does not know.
    pub(crate) fn note_sent(&mut self, bytes: Option<usize>) {
        self.sent = self.sent.zip(bytes).map(|(sent, bytes)| sent + bytes as u64);
    }

    fn tell(&mut self, bytes: u64, settled: Option<Settled>) {
        let Some(sender) = self.attached.sender().filter(|_| !self.attached.stopped().is_cancelled()) else {
            return;
        };
        sender.set_served(self.cookie, bytes, settled);
        // The other order would miss a stop in between.
        if self.attached.stopped().is_cancelled() {
            sender.withdraw_caller(self.cookie);
        }
        (self.served, self.is_withdrawn) = (Some((bytes, settled)), false);
    }

    /// When the last call ended whose response the kernel sent.
    pub(crate) fn last_completed(&self) -> Option<Instant> {
        self.completed.last()
    }

    /// Whether the idle connection may be closed. The first time it may not: the kernel may have begun to send a request before it
    /// was withdrawn.
    pub(crate) fn may_close(&mut self) -> bool {
        if let Some(sender) = self.attached.sender() {
            sender.withdraw_caller(self.cookie);
        }
        self.served = None;
        mem::replace(&mut self.is_withdrawn, true) && !self.is_in_flight()
    }
}

impl Drop for CallerLink {
    fn drop(&mut self) {
        self.attached.callers().remove(&self.cookie);
        if let Some(sender) = self.attached.sender() {
            sender.remove_caller(self.cookie);
        }
    }
}
