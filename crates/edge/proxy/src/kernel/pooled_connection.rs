//! A connection to an endpoint on which the kernel sends requests.

use std::{
    cell::RefCell,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use fairmesh_calls::forwarding::{ConnectionOwner, EndpointConnection};
use fairmesh_edge::services::host_cache::HostCache;
use fairmesh_kernel::{SentRequest, Slot};
use http::StatusCode;
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    sync::oneshot,
    task::yield_now,
    time::{Instant, sleep_until},
};

use crate::kernel::{
    attached_maps::{Attached, KernelRequest},
    published_endpoint::PublishedEndpoint,
    response_relay::{MAX_RESPONSE, relay},
    sidecar_bypass_calls::UnreadCall,
};

/// Time for which a connection stays open without requests.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time after a response within which a server that closes the connection is marked: it closes every
/// connection after a response. No idle timeout is this short.
const CLOSES_SOON: Duration = Duration::from_millis(100);

thread_local! {
    /// Buffer for reads, shared by the connections on this event loop.
    static RECEIVED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A pooled connection while no response is being read from it.
#[derive(Debug)]
pub(super) struct PooledConnection {
    attached: Arc<Attached>,
    endpoint: Arc<PublishedEndpoint>,
    slot: Slot,
    connection: EndpointConnection,
    /// The service of the last request.
    hosts: HostCache,
}

/// The event that ended a pooled connection's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A response has begun, or the endpoint has closed the connection.
    Readable,
    /// A response has been relayed.
    Relayed,
    /// A request has waited too long for its response.
    Overdue,
    /// The connection is no longer needed.
    Unneeded,
    /// The proxy has received no request for some time.
    Idle,
}

/// Returns a connection to its task once a response has been read.
#[derive(Debug)]
struct Lease {
    slot: Slot,
    /// The call, if it is in place of mutual TLS.
    unread: Option<UnreadCall>,
    returned: oneshot::Sender<(Slot, EndpointConnection)>,
}

impl ConnectionOwner for Lease {
    fn note_status(&self, status: StatusCode) {
        if let Some(call) = &self.unread {
            call.record(status);
        }
    }

    fn take_back(self: Box<Self>, connection: EndpointConnection) {
        // Released at once, so that the kernel can use the connection while the caller reads the response.
        self.slot.release();
        // The task is gone only if the event loop has stopped.
        let _ = self.returned.send((self.slot, connection));
    }
}

impl PooledConnection {
    pub(super) fn new(
        attached: Arc<Attached>,
        endpoint: Arc<PublishedEndpoint>,
        slot: Slot,
        connection: EndpointConnection,
    ) -> Self {
        Self { attached, endpoint, slot, connection, hosts: HostCache::default() }
    }

    /// Hands requests over to their callers' connections, until the connection is closed or no longer needed.
    pub(super) async fn run(self) {
        let endpoint = Arc::clone(&self.endpoint);
        let mut kept = Some(self);
        while let Some(connection) = kept {
            kept = connection.wait_request().await;
        }
        endpoint.closed();
    }

    /// Waits for a request whose response cannot be relayed. `None` when the connection has ended.
    async fn wait_request(mut self) -> Option<Self> {
        let mut idle_at = Instant::now() + IDLE_TIMEOUT;
        loop {
            let event = match self.connection.read.is_empty() {
                true => self.wait_event(idle_at).await,
                false => Event::Readable,
            };
            if event == Event::Relayed {
                continue;
            }
            if let Some(request) = self.slot.take_request() {
                let is_closed = event == Event::Readable && self.connection.read.is_empty();
                return self.hand_over(request, is_closed).await;
            }
            let unused_for = self.slot.unused_for();
            if event == Event::Idle && unused_for < IDLE_TIMEOUT {
                // Requests were served meanwhile: their responses bypassed this task or were relayed.
                idle_at = Instant::now() + (IDLE_TIMEOUT - unused_for);
                continue;
            }
            if event != Event::Overdue && self.slot.withdraw() {
                if event == Event::Readable && unused_for < CLOSES_SOON {
                    self.endpoint.slots.note_closes();
                }
                return None;
            }
            // The kernel has claimed the connection and is about to send a request.
            yield_now().await;
        }
    }

    async fn wait_event(&mut self, idle_at: Instant) -> Event {
        let (overdue, withdrawn) = (Arc::clone(&self.attached), self.endpoint.withdrawn.clone());
        tokio::select! {
            event = poll_fn(|context| self.poll_receive(context)) => event,
            () = overdue.overdue.notified() => Event::Overdue,
            () = withdrawn.cancelled() => Event::Unneeded,
            () = sleep_until(idle_at) => Event::Idle,
        }
    }

    /// Reads available data and relays it. If the data cannot be relayed, the request and the data must be handed
    /// over.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        RECEIVED.with_borrow_mut(|received| {
            received.resize(MAX_RESPONSE, 0);
            let mut buffer = ReadBuf::new(received);
            // After the end or an error, the next read returns it again.
            if ready!(Pin::new(&mut self.connection.stream).poll_read(context, &mut buffer)).is_err() {
                return Poll::Ready(Event::Readable);
            }
            let response = buffer.filled();
            if !response.is_empty()
                && relay(&self.attached, &self.endpoint, &self.slot, &self.hosts, response)
            {
                return Poll::Ready(Event::Relayed);
            }
            self.connection.read.extend_from_slice(response);
            Poll::Ready(Event::Readable)
        })
    }

    /// Hands a request over to its caller's connection, and waits until the response has been read. `is_closed` says that the
    /// endpoint has closed the connection without a response.
    async fn hand_over(self, request: SentRequest, is_closed: bool) -> Option<Self> {
        let SentRequest { cookie, age, seed, mut bytes, gone, .. } = request;
        let Self { attached, endpoint, slot, connection, hosts } = self;
        let (returned, wait) = oneshot::channel();
        let now = Instant::now();
        let began = now.checked_sub(age).unwrap_or(now);
        let caller = attached.callers().get(&cookie).cloned();
        let address = caller.as_ref().map(|caller| caller.address);
        let unread = endpoint.in_place.get().map(|counter| counter.unread(&bytes, address, began, is_closed));
        let lease = Box::new(Lease { slot, unread, returned });
        let sent = endpoint.endpoint.sent(connection, lease, began, seed);
        let sent = if gone > 0 { sent.without_body() } else { sent };
        bytes.resize(bytes.len() + gone, 0);
        // If the caller is gone, the connection is closed, as the proxy does for its own calls.
        caller?.requests.try_send(KernelRequest { bytes, sent }).ok()?;
        let (slot, connection) = wait.await.ok()?;
        Some(Self { attached, endpoint, slot, connection, hosts })
    }
}
