//! HTTP/2: calls share a connection, and another one is opened when the server allows no more on it.

mod connection;
mod incoming;
mod last_words;
mod shared;
#[cfg(test)]
mod tests;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

use hazarc::AtomicArc;
use http::response;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};

use self::shared::{Begun, Place, answer};
pub(crate) use self::{
    incoming::Incoming,
    shared::{Reply, Shared},
};
use super::{IDLE_ROUNDS, Lent, Line, Outgoing, Request, SendError, Slot, Times, by, wait};

/// Connections to one endpoint, nearly always one.
#[derive(Default)]
pub(super) struct Pool {
    shared: AtomicArc<Vec<Arc<Shared>>>,
    /// Tells one of those who wait for a place on a connection that there may be one.
    freed: Arc<Notify>,
    /// Held by the one who connects.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// The last attempt that failed, for those who waited for it.
    failure: Mutex<Option<(Instant, io::ErrorKind, String)>>,
}

impl Pool {
    pub(super) async fn send(
        &self,
        line: &Arc<Line>,
        slot: &mut Slot,
        mut times: Times,
    ) -> Result<Reply, SendError> {
        loop {
            let (shared, fresh) = match self.roomiest(true) {
                Some(shared) => (shared, false),
                None => {
                    let shared = Box::pin(self.another(line, times.connected_by)).await?;
                    times.begun = Instant::now();
                    (shared, true)
                }
            };
            // Taken out first: what is matched is held for as long as what is awaited.
            let begun = shared.begin(slot)?;
            match begun {
                Begun::Call(call, place) => {
                    shared.idle_rounds.store(0, Relaxed);
                    if shared.used.swap(true, Relaxed) {
                        line.counters.reused();
                    }
                    return answer(call, place, Some(times)).await.map_err(|error| shared.judge(error));
                }
                Begun::Taken => continue,
                Begun::None => self.discard(&shared),
            }
            // A server that ends connections before anything is sent on them would be connected to for ever.
            if fresh && !shared.used.load(Relaxed) {
                return Err(SendError::Refused("it ended a new connection at once".into()));
            }
        }
    }

    /// Sends a request over a connection that is there, which stays as idle as it was; `None` where none takes it.
    pub(super) async fn ask(&self, slot: &mut Slot) -> Option<Result<response::Parts, SendError>> {
        match self.roomiest(true)?.begin(slot).ok()? {
            Begun::Call(call, place) => {
                Some(answer(call, place, None).await.map(|reply| reply.into_parts().0))
            }
            Begun::Taken | Begun::None => None,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.roomiest(true).is_some()
    }

    /// Another connection, or one that has room again.
    async fn another(&self, line: &Arc<Line>, connected_by: Instant) -> Result<Arc<Shared>, SendError> {
        let connected = by(connected_by, self.connection(line)).await;
        connected.map_err(|error| match error {
            SendError::NoTime | SendError::Unreachable(_) if self.roomiest(false).is_some() => {
                SendError::Refused(
                    "it has as many calls as it takes, and no other connection came about".into(),
                )
            }
            other => other,
        })
    }

    async fn connection(&self, line: &Arc<Line>) -> Result<Arc<Shared>, SendError> {
        // What a server allows is looked at when a call begins; that it allows more by now must not wait for one.
        self.shared.load().iter().for_each(|shared| shared.refresh_limit());
        if let Some(shared) = self.roomiest(true) {
            return Ok(shared);
        }
        let asked = Instant::now();
        let opening = match (Arc::clone(&self.opening).try_lock_owned(), self.roomiest(false)) {
            (Ok(opening), _) => opening,
            // Somebody opens another one already; until then calls wait for a place on what there is.
            (Err(_), Some(full)) => match self.opened_or_freed().await {
                Some(opening) => opening,
                None => return Ok(self.roomiest(true).unwrap_or(full)),
            },
            (Err(_), None) => Arc::clone(&self.opening).lock_owned().await,
        };
        if let Some(shared) = self.roomiest(true) {
            return Ok(shared);
        }
        self.shared_failure(asked)?;
        // A task, since others want the connection too, whatever becomes of the call that began it.
        let line = Arc::clone(line);
        let connecting = tokio::spawn(async move {
            let _opening = opening;
            line.h2.here().open(&line).await
        });
        connecting.await.unwrap_or_else(|error| Err(SendError::Stale(error.into())))
    }

    /// Waits until nobody connects any more, or until there may be a place on a connection, which is `None`.
    async fn opened_or_freed(&self) -> Option<OwnedMutexGuard<()>> {
        tokio::select! {
            biased;
            opening = Arc::clone(&self.opening).lock_owned() => Some(opening),
            () = self.freed.notified() => {
                // Others may wait where there is more than one, or where the server allows more by now.
                if self.room() > 1 {
                    self.freed.notify_one();
                }
                None
            }
        }
    }

    /// Calls that may begin.
    fn room(&self) -> u32 {
        let list = self.shared.load();
        let alive = list.iter().filter(|shared| !shared.gone.load(Relaxed));
        let room = alive.map(|shared| {
            shared.refresh_limit();
            shared.limit.load(Relaxed).saturating_sub(shared.streams.load(Relaxed))
        });
        room.fold(0, u32::saturating_add)
    }

    async fn open(&self, line: &Line) -> Result<Arc<Shared>, SendError> {
        match connection::open(line, &self.freed).await {
            Ok(shared) => {
                self.change(|list| list.push(Arc::clone(&shared)));
                Ok(shared)
            }
            Err(error) => {
                if let SendError::Unreachable(error) = &error {
                    let failure = (Instant::now(), error.kind(), error.to_string());
                    *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                }
                Err(error)
            }
        }
    }

    /// Fails with whoever was connecting while this call waited: a queue of callers that each wait for their own timeout
    /// would be worse.
    fn shared_failure(&self, asked: Instant) -> Result<(), SendError> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failure {
            Some((at, kind, text)) if *at > asked => {
                Err(SendError::Unreachable(io::Error::new(*kind, text.clone())))
            }
            _ => Ok(()),
        }
    }

    /// The connection with the fewest calls, if there is one, with room if asked for.
    fn roomiest(&self, with_room: bool) -> Option<Arc<Shared>> {
        let list = self.shared.load();
        let alive = list.iter().filter(|shared| !shared.gone.load(Relaxed));
        let least = alive.min_by_key(|shared| shared.streams.load(Relaxed))?;
        let room = least.streams.load(Relaxed) < least.limit.load(Relaxed);
        (room || !with_room).then(|| Arc::clone(least))
    }

    fn discard(&self, shared: &Shared) {
        shared.gone.store(true, Relaxed);
        self.change(|_| ());
    }

    fn change(&self, change: impl Fn(&mut Vec<Arc<Shared>>)) {
        // Fails only when there is nothing to replace it by, and there always is.
        let _ = self.shared.fetch_update(|list| {
            let mut list: Vec<_> = list.iter().filter(|shared| !shared.gone.load(Relaxed)).cloned().collect();
            change(&mut list);
            Some(Arc::new(list))
        });
    }

    /// Closes every connection as soon as no call is on it.
    pub(super) fn retire(&self) {
        // A connection says goodbye when nobody knows of it any more, the last call on it included.
        self.shared.store(Arc::default());
    }

    pub(super) fn tidy(&self) {
        for shared in self.shared.load().iter().filter(|shared| shared.streams.load(Relaxed) == 0) {
            if shared.idle_rounds.fetch_add(1, Relaxed) + 1 >= IDLE_ROUNDS {
                shared.gone.store(true, Relaxed);
            }
        }
        self.change(|_| ());
    }
}

/// Speaks over a connection of whatever kind.
pub(crate) fn over<I>(stream: I) -> Arc<Shared>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection::start(stream, (), Arc::default())
}
