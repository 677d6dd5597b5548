use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::BytesMut;
use fairmesh_balancer::load_poll::{PollState, PollTarget};
use fairmesh_router::{EndpointRef, EndpointTarget};
use fairmesh_wire::transport::Stream;
use http::{Method, response};
use tokio::{net::TcpStream, time::Instant};

use super::{
    attempt_waits::AttemptTimeouts,
    connector::{Connector, TransportContext},
    error::SendError,
    h1::{self, BorrowedExchange},
    h2,
    lent_connection::{EndpointConnection, OwnedConnection},
    raw_connection::RawConnection,
    request::{PendingRequest, Request},
    response::{EndpointResponse, SendResult},
};
use crate::{counters::PoolCounters, event_loops::PerEventLoop};

/// All connections to one endpoint.
pub struct EndpointPool {
    endpoint: EndpointRef,
    connector: Connector,
    h1: PerEventLoop<h1::Pool>,
    h2: PerEventLoop<h2::Pool>,
    retired: AtomicBool,
    poll_state: Arc<PollState>,
}

impl EndpointPool {
    /// Creates a pool without connections.
    pub fn new(context: &TransportContext, endpoint: EndpointRef) -> Self {
        let target = endpoint.target();
        let multiplexed = target.protocol.is_multiplexed();
        Self {
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
        }
    }

    /// Retires the pool because the endpoint was removed, moved to another address or left this client's subset. Closes
    /// idle connections now, and the others when their calls end.
    pub fn retire(&self) {
        self.retired.store(true, Relaxed);
        self.h1.all().for_each(h1::Pool::retire);
        self.h2.all().for_each(h2::Pool::retire);
    }

    /// Closes connections that were idle for too long. Called periodically.
    pub fn close_idle(&self) {
        self.h1.all().for_each(h1::Pool::close_idle);
        self.h2.all().for_each(h2::Pool::close_idle);
    }

    /// Closes idle connections that have ended because their peers were revoked.
    pub fn close_ended(&self) {
        // An HTTP/2 connection is read by its own task, which ends with the connection.
        self.h1.all().for_each(h1::Pool::close_ended);
    }

    /// Sends a request in the endpoint's protocol and waits for the head of the response. Dropping the future cancels
    /// the request. Fails if there is no connection by `connected_by`, which leaves time to retry at another endpoint.
    ///
    /// # Errors
    /// There is no response, or the request cannot be sent.
    pub async fn send(
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
    ///
    /// # Errors
    /// No connection could be opened, or it would use TLS.
    pub async fn open(&self) -> Result<EndpointConnection, SendError> {
        let Stream::Tcp(stream) = self.connector.connect().await? else {
            return Err(SendError::Unreachable(io::Error::other("the endpoint requires TLS")));
        };
        Ok(self.lend(stream))
    }

    /// Opens a plaintext connection to the program behind the endpoint, whose address the endpoint itself has stated, for
    /// another component.
    ///
    /// # Errors
    /// No connection could be opened.
    pub async fn open_program(&self, program: SocketAddr) -> io::Result<EndpointConnection> {
        Ok(self.lend(self.connector.connect_program(program).await.map_err(io::Error::other)?))
    }

    fn lend(&self, stream: TcpStream) -> EndpointConnection {
        let open = Some(self.connector.counters.open_connection());
        EndpointConnection { stream, read: BytesMut::new(), open }
    }

    /// Waits for the head of the response to a request that another component sent over HTTP/1.1.
    ///
    /// # Errors
    /// There is no response.
    pub async fn receive(
        &self,
        connection: OwnedConnection,
        method: &Method,
        timeouts: AttemptTimeouts,
    ) -> SendResult {
        h1::receive(connection, method, timeouts).await.map(EndpointResponse::H1)
    }

    /// Opens a connection for any protocol, regardless of the declared one. `connected_by` is as for
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// No connection could be opened.
    pub async fn open_raw(&self, connected_by: Instant) -> Result<RawConnection, SendError> {
        self.connector.connect_raw(connected_by).await
    }

    /// Sends a borrowed request over an idle HTTP/1.1 connection. Returns `None` if none is idle. `head` writes the
    /// request head.
    #[inline]
    pub fn begin_borrowed(&self, head: impl FnOnce(&mut Vec<u8>), body: &[u8]) -> Option<BorrowedExchange> {
        let exchange = BorrowedExchange::begin(self.h1.here(), head, body)?;
        self.connector.counters.count_reuse();
        Some(exchange)
    }

    /// Returns the connection of an exchange whose response was borrowed to the pool.
    #[inline]
    pub fn keep_borrowed(&self, exchange: BorrowedExchange) {
        if let Some(connection) = exchange.into_reusable()
            && !self.is_retired()
        {
            self.h1.here().put_used(connection);
        }
    }

    /// Returns the connection of a completely read response to the pool, unless its request is still being sent.
    pub fn keep(&self, body: &mut h1::ResponseBody) {
        if let Some(connection) = body.take_reusable()
            && !self.is_retired()
        {
            self.h1.here().put_used(connection);
        }
    }

    /// Sends a load poll, which is no attempt of a call, over an open connection, and waits for the head of the
    /// response. Returns `None` if no connection is open, in which case nothing was sent. The poll does not reset the
    /// connection's idle time.
    pub async fn poll_load(&self, request: Request) -> Option<Result<response::Parts, SendError>> {
        let mut pending = Some(request);
        if self.connector.multiplexed {
            return self.h2.here().send_if_connected(&mut pending).await;
        }
        let response = self.h1.here().send_if_connected(&mut pending).await;
        if self.is_retired() {
            // The pool may have been retired before the connection was put back.
            self.h1.here().retire();
        }
        response
    }

    /// The endpoint with its statistics.
    pub fn endpoint(&self) -> &EndpointRef {
        &self.endpoint
    }

    /// Address and properties of the endpoint.
    pub fn target(&self) -> &EndpointTarget {
        self.endpoint.target()
    }

    /// The counters of the mesh.
    pub fn counters(&self) -> &PoolCounters {
        &self.connector.counters
    }

    /// Whether the endpoint must no longer be called.
    pub fn is_retired(&self) -> bool {
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

    /// Whether a request could be sent immediately, over an open connection.
    fn is_connected(&self) -> bool {
        match self.connector.multiplexed {
            true => self.h2.here().has_capacity(),
            false => self.h1.here().has_idle(),
        }
    }
}
