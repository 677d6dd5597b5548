use std::{
    io,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

use hazarc::AtomicArc;
use http::{Response, response::Parts};
use tokio::{
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};

use super::{
    connection,
    response_body::ResponseBody,
    shared_connection::{Begun, SharedConnection, response},
};
use crate::{
    attempt_waits::AttemptTimeouts,
    connector::{Connector, connect_by},
    error::SendError,
    request::PendingRequest,
};

/// Maximum number of held-back connections per endpoint. At the maximum, no further connection is opened. A
/// connection is held back while the server keeps its window shut.
const MAX_HELD_BACK: usize = 8;

/// Number of idle checks without a call after which a connection is closed. The resolver checks every 30 s, so this
/// is 90 s.
const MAX_IDLE_CHECKS: u32 = 3;

/// Connections to one endpoint; usually just one.
#[derive(Default)]
pub(crate) struct Pool {
    connections: AtomicArc<Vec<Arc<SharedConnection>>>,
    /// Wakes one of the calls that are waiting for a stream on a connection.
    stream_freed: Arc<Notify>,
    /// Locked while a connection is being opened.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// The last failed connect, for the calls that waited for it.
    failure: Mutex<Option<ConnectFailure>>,
}

/// Owns one pool per event loop, and the connector of their connections.
pub(crate) trait PoolOwner: Send + Sync + 'static {
    fn connector(&self) -> &Connector;

    /// Returns the pool of this thread's event loop.
    fn pool(&self) -> &Pool;
}

struct ConnectFailure {
    at: Instant,
    kind: io::ErrorKind,
    message: String,
}

impl Pool {
    /// Sends a request. `owner` is the owner of this pool.
    pub(crate) async fn send<O: PoolOwner>(
        &self,
        owner: &Arc<O>,
        pending: &mut PendingRequest,
        mut timeouts: AttemptTimeouts,
    ) -> Result<Response<ResponseBody>, SendError> {
        loop {
            let (connection, is_new) = match self.least_loaded(true) {
                Some(connection) => (connection, false),
                None => {
                    let connecting = self.open_or_wait(owner, timeouts.connected_by);
                    let connected = Box::pin(connecting).await;
                    timeouts.begun = Instant::now();
                    match connected {
                        Ok(connection) => (connection, true),
                        Err(why) => {
                            return self.send_held_back(owner.connector(), pending, (why, timeouts)).await;
                        }
                    }
                }
            };
            // A variable, since a matched expression would live as long as the awaited future.
            let begun = connection.begin(pending)?;
            match begun {
                Begun::Call(call, stream) => {
                    note_use(owner.connector(), &connection);
                    let response = response(call, stream, Some(timeouts)).await;
                    return response.map_err(|error| connection.reclassify(error));
                }
                Begun::AtCapacity => continue,
                Begun::Closing => self.discard(&connection),
            }
            // Limits reconnecting to a server that closes connections before a request is sent.
            if is_new && !connection.used.load(Relaxed) {
                return Err(SendError::Refused("it closed a new connection immediately".into()));
            }
        }
    }

    /// Sends a request without a body on a connection that the server holds back, if for that reason no other
    /// connection can be opened.
    async fn send_held_back(
        &self,
        connector: &Connector,
        pending: &mut PendingRequest,
        (why, timeouts): (SendError, AttemptTimeouts),
    ) -> Result<Response<ResponseBody>, SendError> {
        let list = self.connections.load();
        let alive = list.iter().filter(|connection| !connection.is_closing()).cloned().collect::<Vec<_>>();
        drop(list);
        for connection in alive {
            if let Begun::Call(call, stream) = connection.begin_held_back(pending)? {
                note_use(connector, &connection);
                let response = response(call, stream, Some(timeouts)).await;
                return response.map_err(|error| connection.reclassify(error));
            }
        }
        Err(why)
    }

    /// Sends a request over an existing connection, whose idle time is unchanged. Returns `None` if no connection has
    /// capacity.
    pub(crate) async fn send_if_connected(
        &self,
        pending: &mut PendingRequest,
    ) -> Option<Result<Parts, SendError>> {
        match self.least_loaded(true)?.begin(pending).ok()? {
            Begun::Call(call, stream) => {
                Some(response(call, stream, None).await.map(|response| response.into_parts().0))
            }
            Begun::AtCapacity | Begun::Closing => None,
        }
    }

    pub(crate) fn has_capacity(&self) -> bool {
        self.least_loaded(true).is_some()
    }

    /// Returns a new connection, or one that has capacity again.
    async fn open_or_wait<O: PoolOwner>(
        &self,
        owner: &Arc<O>,
        connected_by: Instant,
    ) -> Result<Arc<SharedConnection>, SendError> {
        let connected = connect_by(connected_by, self.connection(owner)).await;
        connected.map_err(|error| match error {
            SendError::ConnectTimedOut | SendError::Unreachable(_) if self.least_loaded(false).is_some() => {
                SendError::Refused(
                    "all streams of its connections are in use, and no other connection could be opened"
                        .into(),
                )
            }
            other => other,
        })
    }

    async fn connection<O: PoolOwner>(&self, owner: &Arc<O>) -> Result<Arc<SharedConnection>, SendError> {
        // The server's limits are otherwise read when a call begins, but a raised limit must take effect without one.
        self.connections.load().iter().for_each(|connection| connection.refresh_limit());
        if let Some(connection) = self.least_loaded(true) {
            return Ok(connection);
        }
        if self.held_back() >= MAX_HELD_BACK {
            return Err(SendError::Refused("it reads nothing on any of its connections".into()));
        }
        let waiting_since = Instant::now();
        let opening = match (Arc::clone(&self.opening).try_lock_owned(), self.least_loaded(false)) {
            (Ok(opening), _) => opening,
            // Another call is opening a connection. Until it is open, this call waits for a stream on the existing
            // connections.
            (Err(_), Some(full)) => match self.opened_or_freed().await {
                Some(opening) => opening,
                None => return Ok(self.least_loaded(true).unwrap_or(full)),
            },
            (Err(_), None) => Arc::clone(&self.opening).lock_owned().await,
        };
        if let Some(connection) = self.least_loaded(true) {
            return Ok(connection);
        }
        self.shared_failure(waiting_since)?;
        // A separate task, since other calls are waiting for the connection too, even if the call that began it is
        // cancelled.
        let owner = Arc::clone(owner);
        let connecting = tokio::spawn(async move {
            let _opening = opening;
            owner.pool().open(owner.connector()).await
        });
        connecting.await.unwrap_or_else(|error| Err(SendError::Stale(error.into())))
    }

    /// Number of connections whose window the server keeps shut.
    fn held_back(&self) -> usize {
        let list = self.connections.load();
        list.iter().filter(|one| !one.is_closing() && one.limit.load(Relaxed) == 0).count()
    }

    /// Waits until no connection is being opened, or until a stream may be free (`None`).
    async fn opened_or_freed(&self) -> Option<OwnedMutexGuard<()>> {
        tokio::select! {
            biased;
            opening = Arc::clone(&self.opening).lock_owned() => Some(opening),
            () = self.stream_freed.notified() => {
                // Wakes the next waiting call if several streams are free or the server has raised its limit.
                if self.free_streams() > 1 {
                    self.stream_freed.notify_one();
                }
                None
            }
        }
    }

    fn free_streams(&self) -> u32 {
        let list = self.connections.load();
        let alive = list.iter().filter(|connection| !connection.is_closing());
        let free = alive.map(|connection| {
            connection.refresh_limit();
            connection.limit.load(Relaxed).saturating_sub(connection.streams.load(Relaxed))
        });
        free.fold(0, u32::saturating_add)
    }

    async fn open(&self, connector: &Connector) -> Result<Arc<SharedConnection>, SendError> {
        match connection::open(connector, &self.stream_freed).await {
            Ok(connection) => {
                self.change(|list| list.push(Arc::clone(&connection)));
                Ok(connection)
            }
            Err(error) => {
                if let SendError::Unreachable(error) = &error {
                    let (at, kind) = (Instant::now(), error.kind());
                    let failure = ConnectFailure { at, kind, message: error.to_string() };
                    *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                }
                Err(error)
            }
        }
    }

    /// Fails if a connect failed while this call was waiting. Otherwise, queued callers would each wait for their own
    /// timeout.
    fn shared_failure(&self, since: Instant) -> Result<(), SendError> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failure {
            Some(ConnectFailure { at, kind, message }) if *at > since => {
                Err(SendError::Unreachable(io::Error::new(*kind, message.clone())))
            }
            _ => Ok(()),
        }
    }

    /// Returns the connection with the fewest calls; if `with_capacity`, only one that has capacity for another call.
    fn least_loaded(&self, with_capacity: bool) -> Option<Arc<SharedConnection>> {
        let list = self.connections.load();
        let alive = list.iter().filter(|connection| !connection.is_closing());
        let with_room = alive.filter(|connection| {
            !with_capacity || connection.streams.load(Relaxed) < connection.limit.load(Relaxed)
        });
        with_room.min_by_key(|connection| connection.streams.load(Relaxed)).cloned()
    }

    fn discard(&self, connection: &SharedConnection) {
        connection.closing.store(true, Relaxed);
        self.change(|_| ());
    }

    fn change(&self, change: impl Fn(&mut Vec<Arc<SharedConnection>>)) {
        // Fails only where the closure returns `None`.
        let _ = self.connections.fetch_update(|list| {
            let mut list: Vec<_> =
                list.iter().filter(|connection| !connection.is_closing()).cloned().collect();
            change(&mut list);
            Some(Arc::new(list))
        });
    }

    /// Closes every connection as soon as it has no calls.
    pub(crate) fn retire(&self) {
        // A connection sends GOAWAY when the last reference to it is dropped, including the reference of its last call.
        self.connections.store(Arc::default());
    }

    pub(crate) fn close_idle(&self) {
        for idle in self.connections.load().iter().filter(|connection| connection.streams.load(Relaxed) == 0)
        {
            if idle.idle_checks.fetch_add(1, Relaxed) + 1 >= MAX_IDLE_CHECKS {
                idle.closing.store(true, Relaxed);
            }
        }
        self.change(|_| ());
    }
}

/// Records that a call begins on a connection, which is therefore not idle.
fn note_use(connector: &Connector, connection: &SharedConnection) {
    connection.idle_checks.store(0, Relaxed);
    if connection.used.swap(true, Relaxed) {
        connector.counters.count_reuse();
    }
}

#[cfg(test)]
mod tests;
