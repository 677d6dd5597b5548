//! Connections to a single address that is not an endpoint of a service.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_wire::transport::Transport;
use tokio::time::{Instant, sleep};

use super::{
    attempt_waits::AttemptTimeouts,
    connector::Connector,
    error::{SendError, Unanswered},
    h1, h2,
    raw_connection::RawConnection,
    request::Request,
    response::{EndpointResponse, SendResult},
};

/// Connect timeout; short, because the address is near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum idle time of an HTTP/1.1 connection. Servers keep idle connections longer, so few connections are reused
/// while the server closes them.
const MAX_IDLE: Duration = Duration::from_secs(1);
/// Time after a request was sent within which the end of a reused connection means that the server closed it while
/// idle, before it read the request. The server is near, so only a busy machine delays the close that long. A server
/// that ends the connection later has read the request.
const CLOSE_RACE: Duration = Duration::from_millis(100);
/// Number of checks of HTTP/1.1 connections per check of HTTP/2 connections. [`h2::Pool`] closes a connection after
/// three idle checks, that is after a minute. HTTP/2 connections stay longer because a new one costs more, and because
/// a server announces by GOAWAY that it closes one.
const H1_CHECKS: u32 = 60;
/// A wait that is practically unlimited: the caller's own deadlines apply.
const UNLIMITED: Duration = Duration::from_secs(1 << 30);

/// Plaintext connections to one address.
pub struct AddressPool {
    connector: Connector,
    h1: h1::Pool,
    h2: h2::Pool,
}

impl AddressPool {
    /// Creates a pool for a server that speaks HTTP/2 if `multiplexed`, otherwise HTTP/1.1. Must be called within a
    /// tokio runtime.
    pub fn start(address: SocketAddr, multiplexed: bool) -> Arc<Self> {
        let connector = Connector {
            transport: Transport::default(),
            address,
            pod: None,
            identity: None,
            accepts_plaintext: true,
            local: None,
            multiplexed,
            counters: Arc::default(),
            own_addresses: Default::default(),
            connection_hook: Default::default(),
        };
        let pool = Arc::new(Self { connector, h1: h1::Pool::default(), h2: h2::Pool::default() });
        let weak = Arc::downgrade(&pool);
        tokio::spawn(async move {
            for check in 1_u32.. {
                sleep(MAX_IDLE / h1::MAX_IDLE_CHECKS).await;
                let Some(pool) = weak.upgrade() else { return };
                pool.h1.close_idle();
                if check.is_multiple_of(H1_CHECKS) {
                    pool.h2.close_idle();
                }
            }
        });
        pool
    }

    /// Sends a request and waits for the head of the response. Dropping the future cancels the request.
    ///
    /// An idempotent HTTP/1.1 request is sent once more if its reused connection ended at once without a byte of a
    /// response: the server closed the idle connection while the request was on its way (RFC 9112 9.3.1). Over HTTP/2
    /// the server reports which requests it has not read (RFC 9113 6.8).
    ///
    /// # Errors
    /// There is no response, or the request cannot be sent.
    pub async fn send(self: &Arc<Self>, request: Request) -> SendResult {
        if self.connector.multiplexed {
            let mut pending = Some(request);
            return self.h2.send(self, &mut pending, timeouts()).await.map(EndpointResponse::H2);
        }
        let replay = request.head.method.is_idempotent().then(|| request.body.replay()).flatten();
        let again = replay.map(|body| (request.head.clone(), body, request.left));
        let mut pending = Some(request);
        let sent = timeouts();
        match self.h1.send_over_idle(&self.connector, &mut pending, sent).await {
            None => {}
            Some(Err(SendError::Broken(cause)))
                if cause.is::<Unanswered>() && sent.begun.elapsed() <= CLOSE_RACE =>
            {
                let body = again.as_ref().and_then(|(_, body, _)| body.to_body());
                let (Some((head, _, left)), Some(body)) = (again, body) else {
                    return Err(SendError::Broken(cause));
                };
                let left = left.map(|left| left.saturating_sub(sent.begun.elapsed()));
                pending = Some(Request { head, body, left });
            }
            Some(sent) => return sent.map(EndpointResponse::H1),
        }
        Box::pin(h1::send_over_new(&self.connector, &mut pending, timeouts())).await.map(EndpointResponse::H1)
    }

    /// Opens a connection for any protocol.
    ///
    /// # Errors
    /// No connection within a second.
    pub async fn open_raw(&self) -> Result<RawConnection, SendError> {
        self.connector.connect_raw(Instant::now() + CONNECT_TIMEOUT).await
    }

    /// Returns the connection of a completely read response to the pool, unless its request is still being sent.
    pub fn keep(&self, body: &mut h1::ResponseBody) {
        if let Some(connection) = body.take_reusable() {
            self.h1.put_used(connection);
        }
    }
}

impl h2::PoolOwner for AddressPool {
    fn connector(&self) -> &Connector {
        &self.connector
    }

    fn pool(&self) -> &h2::Pool {
        &self.h2
    }
}

fn timeouts() -> AttemptTimeouts {
    let begun = Instant::now();
    AttemptTimeouts {
        begun,
        connected_by: begun + CONNECT_TIMEOUT,
        until: begun + UNLIMITED,
        response_header: UNLIMITED,
        idle: UNLIMITED,
    }
}
