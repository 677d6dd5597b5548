//! HTTP/1.1: one call at a time on a connection, idle ones kept.
//!
//! A connection is a value that the call which uses it owns: the call itself writes its request and reads its answer, so
//! that nothing has to wake anything else. Rejected: a task a connection, as hyper has it, which costs two switches a call.

mod connection;
mod incoming;
mod upload;

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use http::{Response, response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use self::connection::Connection;
pub(crate) use self::{
    connection::{Got, Plain},
    incoming::Incoming,
};
use super::{
    Alarm, IDLE_ROUNDS, Line, Outgoing, Request, SendError, Slot, Times, by,
    wait::{Movement, Sending, Wait},
};

/// Idle connections that are kept to one endpoint: as many calls as one client has at once with a server it likes.
const MOST_IDLE: usize = 256;

/// Connections that wait for a call, the one used last at the back: the others may then grow old and close.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<VecDeque<Idle>>,
    /// Rounds of tidying so far.
    round: AtomicU32,
}

struct Idle {
    connection: Box<Connection>,
    /// In which round it was put here; counting rounds instead of reading a clock for every call.
    since: u32,
}

/// The head of an answer, and its body with the connection that it comes from.
pub(crate) struct Reply {
    pub(crate) response: Response<Incoming>,
}

impl Pool {
    pub(super) async fn send(
        &self,
        line: &Arc<Line>,
        slot: &mut Slot,
        mut times: Times,
    ) -> Result<Reply, SendError> {
        loop {
            let (connection, reused) = match self.take() {
                Some(idle) => (idle.connection, true),
                // Boxed, as all that is rare on the way of a call: it would make the future of each larger, which is moved.
                None => {
                    let connection = Box::pin(by(times.connected_by, open(line))).await?;
                    times.begun = Instant::now();
                    (connection, false)
                }
            };
            match connection.exchange(slot, Some(times)).await {
                Ok(response) => {
                    if reused {
                        line.counters.reused();
                    }
                    return Ok(Reply { response });
                }
                // The server closed it while it was idle: the next one, or a new one, is as good.
                Err(SendError::Stale(_)) if reused => {}
                // It took the connection and nothing on it, not even a first call.
                Err(SendError::Stale(error)) => return Err(SendError::Refused(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request over a connection that waits for a call, and puts it back as idle as it was; `None` where nothing was
    /// sent.
    pub(super) async fn ask(&self, slot: &mut Slot) -> Option<Result<response::Parts, SendError>> {
        let Idle { connection, since } = self.take()?;
        let (head, body) = match connection.exchange(slot, None).await {
            Ok(response) => response.into_parts(),
            Err(error) => return slot.is_none().then_some(Err(error)),
        };
        if let Some(connection) = body.finish().await {
            self.put(Idle { connection, since });
        }
        Some(Ok(head))
    }

    pub(super) fn has_idle(&self) -> bool {
        !self.idle.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes the connection used last among those that are still open.
    fn take(&self) -> Option<Idle> {
        loop {
            let last = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop_back()?;
            if last.connection.is_quiet() {
                return Some(last);
            }
        }
    }

    /// Keeps a connection that a call has used.
    fn put_used(&self, connection: Box<Connection>) {
        self.put(Idle { connection, since: self.round.load(Relaxed) });
    }

    fn put(&self, mut waiting: Idle) {
        waiting.connection.rest();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MOST_IDLE {
            idle.pop_front();
        }
        idle.push_back(waiting);
    }

    /// Closes what has been idle for several rounds of tidying, or was closed by the server.
    pub(super) fn tidy(&self) {
        let round = self.round.fetch_add(1, Relaxed) + 1;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| round.wrapping_sub(idle.since) < IDLE_ROUNDS && idle.connection.is_quiet());
        idle.iter_mut().for_each(|idle| idle.connection.shrink());
    }

    /// Closes what is idle.
    pub(super) fn retire(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A first call over a connection of whatever kind.
pub(crate) async fn call_over<I>(stream: I, slot: &mut Slot) -> Result<Response<Incoming<I>>, SendError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::new(Connection::new(stream, None)).exchange(slot, None).await
}

async fn open(line: &Arc<Line>) -> Result<Box<Connection>, SendError> {
    let stream = line.connect().await?;
    Ok(Box::new(Connection::new(stream, Some(line.counters.open_connection()))))
}
