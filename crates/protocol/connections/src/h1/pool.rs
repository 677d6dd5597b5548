use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use fairmesh_wire::transport::Stream;
use http::{Method, Response, response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use super::{
    connection::{Connection, response_reader},
    response_body::ResponseBody,
};
use crate::{
    attempt_waits::{AttemptTimeouts, ResponseWait},
    connector::{Connector, connect_by},
    error::SendError,
    lent_connection::OwnedConnection,
    request::PendingRequest,
};

/// Number of idle checks without a call after which a connection is closed. The resolver checks every 30 s, so this
/// is 90 s.
pub(crate) const MAX_IDLE_CHECKS: u32 = 3;

/// Maximum number of idle connections per endpoint. It suffices for that many concurrent calls of a client to a
/// server.
const MAX_IDLE: usize = 256;

/// Idle connections. The most recently used is at the back, so that the others may expire.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<VecDeque<Idle>>,
    /// Number of idle checks so far.
    idle_checks: AtomicU32,
}

struct Idle {
    connection: Box<Connection>,
    /// Value of `idle_checks` when the connection was put here. Counting checks avoids reading the clock for every
    /// call.
    since: u32,
}

impl Pool {
    pub(crate) async fn send(
        &self,
        connector: &Connector,
        pending: &mut PendingRequest,
        timeouts: AttemptTimeouts,
    ) -> Result<Response<ResponseBody>, SendError> {
        match self.send_over_idle(connector, pending, timeouts).await {
            Some(sent) => sent,
            // Boxed like every rare step of a call: it would enlarge the future of each call, which is moved.
            None => Box::pin(send_over_new(connector, pending, timeouts)).await,
        }
    }

    /// Sends a request over an idle connection. Returns `None` if no idle connection accepted it.
    pub(crate) async fn send_over_idle(
        &self,
        connector: &Connector,
        pending: &mut PendingRequest,
        timeouts: AttemptTimeouts,
    ) -> Option<Result<Response<ResponseBody>, SendError>> {
        loop {
            match self.take()?.connection.exchange(pending, Some(timeouts)).await {
                // The server closed the connection while it was idle: the next connection, or a new one, is tried.
                Err(SendError::Stale(_)) => {}
                sent => {
                    if sent.is_ok() {
                        connector.counters.count_reuse();
                    }
                    return Some(sent);
                }
            }
        }
    }

    /// Sends a request over an idle connection, and puts the connection back with its idle time unchanged. Returns
    /// `None` if nothing was sent.
    pub(crate) async fn send_if_connected(
        &self,
        pending: &mut PendingRequest,
    ) -> Option<Result<response::Parts, SendError>> {
        let Idle { connection, since } = self.take()?;
        let (head, body) = match connection.exchange(pending, None).await {
            Ok(response) => response.into_parts(),
            Err(error) => return pending.is_none().then_some(Err(error)),
        };
        if let Some(connection) = body.discard().await {
            self.put(Idle { connection, since });
        }
        Some(Ok(head))
    }

    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes the most recently used connection that is still open.
    pub(super) fn take_connection(&self) -> Option<Box<Connection>> {
        self.take().map(|idle| idle.connection)
    }

    fn take(&self) -> Option<Idle> {
        loop {
            let mut last = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop_back()?;
            if last.connection.is_quiet() {
                return Some(last);
            }
        }
    }

    /// Puts back a connection that a call has used.
    pub(crate) fn put_used(&self, connection: Box<Connection>) {
        let Some(connection) = connection.into_unowned() else { return };
        self.put(Idle { connection, since: self.idle_checks.load(Relaxed) });
    }

    fn put(&self, mut waiting: Idle) {
        waiting.connection.release_empty();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back(waiting);
    }

    /// Closes connections that have been idle for several checks or were closed by the server.
    pub(crate) fn close_idle(&self) {
        let checks = self.idle_checks.fetch_add(1, Relaxed) + 1;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain_mut(|idle| {
            checks.wrapping_sub(idle.since) < MAX_IDLE_CHECKS && idle.connection.is_quiet()
        });
        idle.iter_mut().for_each(|idle| idle.connection.shrink());
    }

    /// Closes idle connections that have ended.
    pub(crate) fn close_ended(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain_mut(|idle| idle.connection.is_quiet());
    }

    /// Closes all idle connections.
    pub(crate) fn retire(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Sends a request over a new connection.
pub(crate) async fn send_over_new(
    connector: &Connector,
    pending: &mut PendingRequest,
    mut timeouts: AttemptTimeouts,
) -> Result<Response<ResponseBody>, SendError> {
    let connection = connect_by(timeouts.connected_by, open(connector)).await?;
    timeouts.begun = Instant::now();
    connection.exchange(pending, Some(timeouts)).await.map_err(|error| match error {
        // The server accepted the connection but nothing on it, not even a first call.
        SendError::Stale(error) => SendError::Refused(error),
        error => error,
    })
}

/// Makes the first call on a stream of any kind.
///
/// # Errors
/// There is no response, or the request cannot be sent.
pub async fn call_over<I>(
    stream: I,
    pending: &mut PendingRequest,
) -> Result<Response<ResponseBody<I>>, SendError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::new(Connection::new(stream, None)).exchange(pending, None).await
}

/// Waits for the head of the response to a request that the owner of the connection sent.
pub(crate) async fn receive(
    connection: OwnedConnection,
    method: &Method,
    timeouts: AttemptTimeouts,
) -> Result<Response<ResponseBody>, SendError> {
    let wait = Some(ResponseWait::new(timeouts));
    Box::new(Connection::owned(connection)).receive(response_reader(method), None, wait).await
}

async fn open(connector: &Connector) -> Result<Box<Connection>, SendError> {
    let stream = connector.connect().await?;
    if let Stream::Tcp(stream) = &stream {
        connector.connection_hook.connected(stream);
    }
    Ok(Box::new(Connection::new(stream, Some(connector.counters.open_connection()))))
}
