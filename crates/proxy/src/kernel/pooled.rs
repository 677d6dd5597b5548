//! A connection to an endpoint on which the kernel sends requests.

use std::{sync::Arc, time::Duration};

use fairmesh_calls::forwarding::{ConnectionOwner, EndpointConnection};
use fairmesh_kernel::{SentRequest, Slot};
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, sleep_until},
};

use crate::kernel::{
    attached::{Attached, KernelRequest},
    endpoint::PublishedEndpoint,
};

/// How long a connection stays without a request.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A pooled connection while no response is read from it.
#[derive(Debug)]
pub(super) struct PooledConnection {
    attached: Arc<Attached>,
    endpoint: Arc<PublishedEndpoint>,
    slot: Slot,
    connection: EndpointConnection,
}

/// What a pooled connection waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A response has begun, or the endpoint has closed the connection.
    Readable,
    /// Some request has been waiting for its response.
    Overdue,
    /// The connection is not needed any more.
    Unneeded,
    /// The proxy has seen no request for a while.
    Idle,
}

/// Returns a connection to its task after a response.
#[derive(Debug)]
struct Lease {
    slot: Slot,
    returned: oneshot::Sender<(Slot, EndpointConnection)>,
}

impl ConnectionOwner for Lease {
    fn take_back(self: Box<Self>, connection: EndpointConnection) {
        // At once, so that the kernel finds it while the caller reads the response.
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
        Self { attached, endpoint, slot, connection }
    }

    /// Hands requests over to the connections of their callers until it is closed or not needed any more.
    pub(super) async fn run(self) {
        let endpoint = Arc::clone(&self.endpoint);
        let mut kept = Some(self);
        while let Some(connection) = kept {
            kept = connection.wait_request().await;
        }
        endpoint.closed();
    }

    /// Waits for one request; `None` when the connection has ended.
    async fn wait_request(self) -> Option<Self> {
        let (mut idle_at, mut byte) = (Instant::now() + IDLE_TIMEOUT, [0]);
        loop {
            let event = tokio::select! {
                _ = self.connection.stream.peek(&mut byte) => Event::Readable,
                () = self.attached.overdue.notified() => Event::Overdue,
                () = self.endpoint.withdrawn.cancelled() => Event::Unneeded,
                () = sleep_until(idle_at) => Event::Idle,
            };
            if let Some(request) = self.slot.take_request() {
                return self.hand_over(request).await;
            }
            let unused_for = self.slot.unused_for();
            if event == Event::Idle && unused_for < IDLE_TIMEOUT {
                // The kernel has sent responses to its requests too.
                idle_at = Instant::now() + (IDLE_TIMEOUT - unused_for);
                continue;
            }
            if event != Event::Overdue && self.slot.withdraw() {
                return None;
            }
            // The kernel is about to send a request.
            yield_now().await;
        }
    }

    /// Hands a request over to the connection of its caller, and waits until the response has been read.
    async fn hand_over(self, SentRequest { cookie, age, seed, bytes }: SentRequest) -> Option<Self> {
        let Self { attached, endpoint, slot, connection } = self;
        let (returned, wait) = oneshot::channel();
        let now = Instant::now();
        let began = now.checked_sub(age).unwrap_or(now);
        let sent = endpoint.endpoint.sent(connection, Box::new(Lease { slot, returned }), began, seed);
        let caller = attached.callers().get(&cookie).cloned();
        // Without its caller, or with the wrong one, the connection is closed, as when a caller of the sidecar disconnects.
        caller?.requests.try_send(KernelRequest { bytes, sent }).ok()?;
        let (slot, connection) = wait.await.ok()?;
        Some(Self { attached, endpoint, slot, connection })
    }
}
