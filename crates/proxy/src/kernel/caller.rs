//! A caller whose requests the kernel may send, and its connection to the proxy.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use fairmesh_calls::forwarding::SentRequest;
use fairmesh_kernel::MAX_REQUEST;
use http::{Request, header};
use tokio::sync::mpsc;

use crate::{
    forward::{connection_info::ConnectionInfo, forwarder::Forwarder, target::Target},
    kernel::attached::{Attached, KernelRequest},
};

/// A caller whose connection was redirected.
#[derive(Debug)]
pub(crate) struct KernelCaller {
    attached: Arc<Attached>,
    cookie: u64,
}

/// The requests that the kernel sends of one caller, while its connection is served. One is in flight at most.
#[derive(Debug)]
pub(crate) struct CallerLink {
    attached: Arc<Attached>,
    cookie: u64,
    requests: mpsc::Receiver<KernelRequest>,
    /// Requests received.
    received: u64,
    /// Bytes that the proxy has served, as the kernel knows it.
    served: Option<u64>,
    is_withdrawn: bool,
    /// The request that is handled now, if the kernel sent it.
    pub(crate) current: Option<SentRequest>,
}

impl KernelCaller {
    pub(super) fn new(attached: Arc<Attached>, cookie: u64) -> Self {
        Self { attached, cookie }
    }

    /// Has the kernel send further requests of this connection. `None` while it sends none.
    pub(crate) fn link(&self) -> Option<Box<CallerLink>> {
        let (attached, cookie) = (Arc::clone(&self.attached), self.cookie);
        let (sender, requests) = mpsc::channel(1);
        attached.callers().insert(cookie, sender);
        let link = CallerLink {
            attached,
            cookie,
            requests,
            received: 0,
            served: None,
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

    /// Whether the kernel has sent a request that has not been received. What the caller sent to the proxy comes after it.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.attached.sender().is_some_and(|sender| sender.sent(self.cookie) > self.received)
    }

    /// The proxy handles no request besides those in the first `bytes` of the connection: the kernel may send the next one.
    pub(crate) fn set_served(&mut self, bytes: u64) {
        if let Some(sender) = self.attached.sender().filter(|_| self.served != Some(bytes)) {
            sender.set_served(self.cookie, bytes);
            // The other order would miss a stop in between.
            if self.attached.stopped().is_cancelled() {
                sender.withdraw_caller(self.cookie);
            }
            (self.served, self.is_withdrawn) = (Some(bytes), false);
        }
    }

    /// As [`set_served`](Self::set_served), unless the connection is about to be closed.
    pub(crate) fn note_idle(&mut self, bytes: u64) {
        if !self.is_withdrawn {
            self.set_served(bytes);
        }
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
