use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::BytesMut;
use fairmesh_balancer::poll::{PollState, PollTarget};
use fairmesh_router::{EndpointRef, EndpointTarget};
use fairmesh_wire::transport::Stream;
use http::{Method, response};
use tokio::time::Instant;

use super::{
    connector::{Connector, TransportContext},
    error::SendError,
    h1::{self, BorrowedExchange},
    h2,
    lent_connection::{EndpointConnection, OwnedConnection},
    raw_connection::RawConnection,
    request::{PendingRequest, Request},
    response::{EndpointResponse, SendResult},
    wait::AttemptTimeouts,
};
use crate::{call::Clock, discovery::EndpointTransport, event_loops::PerEventLoop, observe::Counters};

/// All connections to one endpoint.
pub(crate) struct EndpointPool {
    endpoint: EndpointRef,
    connector: Connector,
    h1: PerEventLoop<h1::Pool>,
    h2: PerEventLoop<h2::Pool>,
    retired: AtomicBool,
    poll_state: Arc<PollState>,
}

impl EndpointPool {
    /// Sends a request by the endpoint's protocol and waits for the head of the response. Dropping the future cancels
    /// the request. Fails where there is no connection until `connected_by`, which leaves time to retry at another
    /// endpoint.
    pub(crate) async fn send(
        self: &Arc<Self>,
        pending: &mut PendingRequest,
        timeouts: AttemptTimeouts,
    ) -> SendResult {
        if !self.connector.multiplexed {
            let sent = self.h1.here().send(&self.connector, pending, timeouts).await;
            return sent.map(EndpointResponse::H1);
        }
        self.h2.here().send(self, pending, timeouts).await.map(EndpointResponse::H2)
    }

    /// Opens a plaintext HTTP/1.1 connection for another component.
    pub(crate) async fn open(&self) -> Result<EndpointConnection, SendError> {
        let Stream::Tcp(stream) = self.connector.connect().await? else {
            return Err(SendError::Unreachable(io::Error::other("the endpoint requires TLS")));
        };
        Ok(EndpointConnection {
            stream,
            read: BytesMut::new(),
            open: Some(self.connector.counters.open_connection()),
        })
    }

    /// Waits for the head of the response to a request that another component sent over HTTP/1.1.
    pub(crate) async fn receive(
        &self,
        connection: OwnedConnection,
        method: &Method,
        timeouts: AttemptTimeouts,
    ) -> SendResult {
        h1::receive(connection, method, timeouts).await.map(EndpointResponse::H1)
    }

    /// A connection for any protocol, whichever is declared; `connected_by` as for [`send`](Self::send).
    pub(crate) async fn open_raw(&self, connected_by: Instant) -> Result<RawConnection, SendError> {
        self.connector.connect_raw(connected_by).await
    }

    /// Sends a borrowed request over an idle HTTP/1.1 connection; `None` where there is none. `head` writes its head.
    #[inline]
    pub(crate) fn begin_borrowed(
        &self,
        head: impl FnOnce(&mut Vec<u8>),
        body: &[u8],
    ) -> Option<BorrowedExchange> {
        let exchange = BorrowedExchange::begin(self.h1.here(), head, body)?;
        self.connector.counters.count_reuse();
        Some(exchange)
    }

    /// Keeps the connection of an exchange whose response was borrowed.
    #[inline]
    pub(crate) fn keep_borrowed(&self, exchange: BorrowedExchange) {
        if let Some(connection) = exchange.into_reusable()
            && !self.is_retired()
        {
            self.h1.here().put_used(connection);
        }
    }

    /// Keeps the connection of a response that was read to its end, unless its request is still being sent.
    pub(crate) fn keep(&self, body: &mut h1::ResponseBody) {
        if let Some(connection) = body.take_reusable()
            && !self.is_retired()
        {
            self.h1.here().put_used(connection);
        }
    }

    /// Records the latency from `since` to a response, where there is one and picks depend on it.
    #[inline]
    pub(crate) fn record_latency(&self, is_response: bool, since: u64, clock: Clock) {
        if is_response && self.target().by_latency {
            let now = clock.now();
            self.endpoint().record_latency(now.saturating_sub(since), now);
        }
    }

    /// Sends a request that is no attempt of a call over a connection that is open already, and waits for the head of
    /// the response; `None` where nothing was sent, since there is no such connection. An otherwise idle connection
    /// keeps its idle time.
    pub(crate) async fn poll_load(&self, request: Request) -> Option<Result<response::Parts, SendError>> {
        let mut pending = Some(request);
        if self.connector.multiplexed {
            return self.h2.here().send_if_connected(&mut pending).await;
        }
        let response = self.h1.here().send_if_connected(&mut pending).await;
        if self.is_retired() {
            // It may have been retired before the connection was put back.
            self.h1.here().retire();
        }
        response
    }

    /// The endpoint, and its statistics.
    pub(crate) fn endpoint(&self) -> &EndpointRef {
        &self.endpoint
    }

    /// Address and properties of the endpoint.
    pub(crate) fn target(&self) -> &EndpointTarget {
        self.endpoint.target()
    }

    /// The counters of the mesh.
    pub(crate) fn counters(&self) -> &Counters {
        &self.connector.counters
    }

    /// Whether the endpoint is not to be called any more.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }
}

impl h2::PoolOwner for EndpointPool {
    fn connector(&self) -> &Connector {
        &self.connector
    }

    fn pool(&self) -> &h2::Pool {
        self.h2.here()
    }
}

impl PollTarget for EndpointPool {
    fn poll_state(&self) -> &Arc<PollState> {
        &self.poll_state
    }

    /// Whether a request could be sent immediately, over a connection that is open already.
    fn is_connected(&self) -> bool {
        match self.connector.multiplexed {
            true => self.h2.here().has_capacity(),
            false => self.h1.here().has_idle(),
        }
    }
}

impl EndpointTransport for Arc<EndpointPool> {
    type Context = TransportContext;

    fn open(context: &TransportContext, endpoint: EndpointRef) -> Self {
        let target = endpoint.target();
        let multiplexed = target.protocol.is_multiplexed();
        Self::new(EndpointPool {
            connector: Connector {
                transport: context.transport.clone(),
                address: target.address,
                pod: target.pod,
                identity: target.identity.clone(),
                accepts_plaintext: target.accepts_plaintext && !context.identities_only,
                local: context.local,
                multiplexed,
                counters: Arc::clone(&context.counters),
                own_addresses: context.own_addresses.clone(),
                connection_hook: context.connection_hook.clone(),
            },
            endpoint,
            h1: PerEventLoop::new(if multiplexed { 1 } else { context.event_loops }),
            // Every use checks `multiplexed` first.
            h2: if multiplexed { PerEventLoop::new(context.event_loops) } else { PerEventLoop::none() },
            retired: AtomicBool::new(false),
            poll_state: Arc::default(),
        })
    }

    fn retire(&self) {
        self.retired.store(true, Relaxed);
        self.h1.all().for_each(h1::Pool::retire);
        self.h2.all().for_each(h2::Pool::retire);
    }

    fn close_idle(&self) {
        self.h1.all().for_each(h1::Pool::close_idle);
        self.h2.all().for_each(h2::Pool::close_idle);
    }

    fn close_ended(&self) {
        // Each connection of HTTP/2 is read by a task of its own, which ends with it.
        self.h1.all().for_each(h1::Pool::close_ended);
    }
}
