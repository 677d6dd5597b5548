//! HTTP/1.1: one call at a time on a connection, idle ones kept.

use std::{
    collections::VecDeque,
    error::Error as StdError,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use http::Response;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::{IDLE_ROUNDS, Line, Outgoing, SendError, Slot, by};
use crate::BoxError;

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
    sender: http1::SendRequest<Outgoing>,
    /// In which round it was put here; counting rounds instead of reading a clock for every call.
    since: u32,
}

/// The head of an answer, the connection that its body comes from, and where that goes afterwards.
pub(crate) struct Reply {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
}

/// A connection in use. Dropping it before [`Lease::give_back`] closes the connection: bytes of the answer may be on it.
pub(crate) struct Lease {
    sender: http1::SendRequest<Outgoing>,
    line: Arc<Line>,
}

impl Pool {
    pub(super) async fn send(
        &self,
        line: &Arc<Line>,
        slot: &mut Slot,
        connected_by: Instant,
    ) -> Result<Reply, SendError> {
        loop {
            let (mut sender, reused) = match self.take() {
                Some(sender) => (sender, true),
                None => (by(connected_by, open(line)).await?, false),
            };
            let Some(request) = slot.take() else {
                return Err(SendError::Invalid("there is no request to send".into()));
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    if reused {
                        line.counters.reused();
                    }
                    return Ok(Reply { response, lease: Lease { sender, line: Arc::clone(line) } });
                }
                Err(mut error) => {
                    *slot = error.take_message();
                    match slot {
                        // The server closed it while it was idle: the next one, or a new one, is as good.
                        Some(_) if reused => {}
                        Some(_) => return Err(SendError::Stale(error.into_error().into())),
                        None => return Err(classify(error.into_error())),
                    }
                }
            }
        }
    }

    /// Takes the connection used last among those that are fit for a call.
    fn take(&self) -> Option<http1::SendRequest<Outgoing>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was used a moment ago may have to be driven once more before it is ready; the next one will do.
        let mut busy = None;
        while let Some(last) = idle.pop_back() {
            if last.sender.is_ready() {
                idle.extend(busy);
                return Some(last.sender);
            }
            if !last.sender.is_closed()
                && let Some(other) = busy.replace(last)
            {
                idle.push_front(other);
                break;
            }
        }
        idle.extend(busy);
        None
    }

    fn put(&self, sender: http1::SendRequest<Outgoing>) {
        let since = self.round.load(Relaxed);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MOST_IDLE {
            idle.pop_front();
        }
        idle.push_back(Idle { sender, since });
    }

    /// Closes what has been idle for several rounds of tidying.
    pub(super) fn tidy(&self) {
        let round = self.round.fetch_add(1, Relaxed) + 1;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| round.wrapping_sub(idle.since) < IDLE_ROUNDS && !idle.sender.is_closed());
    }

    /// Closes what is idle.
    pub(super) fn retire(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Lease {
    /// The answer was read to its end: the connection may carry another call.
    pub(crate) fn give_back(self) {
        if !self.line.is_retired() && !self.sender.is_closed() {
            self.line.h1.put(self.sender);
        }
    }
}

async fn open(line: &Arc<Line>) -> Result<http1::SendRequest<Outgoing>, SendError> {
    let stream = line.connect().await?;
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|error| SendError::Stale(error.into()))?;
    let open = line.counters.open_connection();
    tokio::spawn(async move {
        // Its errors reach the call that is on it.
        let _ = connection.await;
        drop(open);
    });
    Ok(sender)
}

fn classify(error: hyper::Error) -> SendError {
    if error.is_user() {
        let source: BoxError = error.into();
        // hyper wraps what the body said as the source of its own error.
        return match StdError::source(&*source) {
            Some(_) => SendError::Body(source),
            None => SendError::Invalid(source),
        };
    }
    SendError::Broken(error.into())
}
