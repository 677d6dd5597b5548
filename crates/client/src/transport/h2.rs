//! HTTP/2: calls share a connection, and another one is opened when the server allows no more on it.

mod connection;
mod last_words;
mod upload;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};
use std::{
    io,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use hazarc::AtomicArc;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header, response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use super::{IDLE_ROUNDS, Line, Outgoing, Request, SendError, Slot, by};
use crate::{headers, http1};

/// Said of a request to switch protocols on a connection that other calls share.
const NO_UPGRADES: &str = "over HTTP/2 there are no upgrades; declare the service with protocol http1";

/// Connections to one endpoint, nearly always one.
#[derive(Default)]
pub(super) struct Pool {
    shared: AtomicArc<Vec<Arc<Shared>>>,
    /// Held by the one who connects.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// The last attempt that failed, for those who waited for it.
    failure: Mutex<Option<(Instant, io::ErrorKind, String)>>,
}

/// A connection that calls share.
pub(crate) struct Shared {
    /// Never holds back a request: see [`Shared::begin`].
    sender: Mutex<SendRequest<Bytes>>,
    /// Calls on it.
    streams: AtomicU32,
    /// Calls that the server allows on it.
    limit: AtomicU32,
    /// It takes no more calls: the server said so, or it broke.
    gone: AtomicBool,
    used: AtomicBool,
    /// A call on it was answered.
    proven: AtomicBool,
    idle_rounds: AtomicU32,
}

/// The head of an answer and where its body comes from.
pub(crate) struct Reply {
    pub(crate) response: Response<RecvStream>,
    pub(crate) stream: Stream,
}

/// A call's place on its connection, until it is dropped.
pub(crate) struct Stream {
    shared: Arc<Shared>,
    /// What still sends the request's body while the answer is read.
    upload: Option<AbortOnDropHandle<()>>,
}

/// A stream that was opened.
struct Opened {
    place: Stream,
    answer: ResponseFuture,
    sender: SendStream<Bytes>,
    body: Outgoing,
}

impl Pool {
    pub(super) async fn send(
        &self,
        line: &Arc<Line>,
        slot: &mut Slot,
        connected_by: Instant,
    ) -> Result<Reply, SendError> {
        loop {
            let (shared, fresh) = match self.roomiest(true) {
                Some(shared) => (shared, false),
                None => (Box::pin(by(connected_by, self.connection(line))).await?, true),
            };
            // Taken out first: what is matched is held for as long as what is awaited.
            let opened = shared.begin(slot)?;
            if let Some(opened) = opened {
                shared.idle_rounds.store(0, Relaxed);
                if shared.used.swap(true, Relaxed) {
                    line.counters.reused();
                }
                return upload::send(opened).await.map_err(|error| shared.judge(error));
            }
            self.discard(&shared);
            // A server that ends connections before anything is sent on them would be connected to for ever.
            if fresh && !shared.used.load(Relaxed) {
                return Err(SendError::Refused("it ended a new connection at once".into()));
            }
        }
    }

    /// Sends a request over a connection that is there, which stays as idle as it was; `None` where none takes it.
    pub(super) async fn ask(&self, slot: &mut Slot) -> Option<Result<response::Parts, SendError>> {
        let opened = self.roomiest(true)?.begin(slot).ok().flatten()?;
        Some(upload::send(opened).await.map(|reply| reply.response.into_parts().0))
    }

    pub(super) fn has_room(&self) -> bool {
        self.roomiest(true).is_some()
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
            // Somebody opens another one already; until then calls queue on what there is.
            (Err(_), Some(full)) => return Ok(full),
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

    async fn open(&self, line: &Line) -> Result<Arc<Shared>, SendError> {
        match connection::open(line).await {
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
        // h2 says goodbye when the last handle is dropped, and carries on until the last call is done.
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
pub(crate) async fn over<I>(stream: I) -> Result<Arc<Shared>, SendError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection::start(stream, ()).await
}

fn limit_of(sender: &SendRequest<Bytes>) -> u32 {
    u32::try_from(sender.current_max_send_streams()).unwrap_or(u32::MAX)
}

impl Shared {
    /// A server that closes connections on which it has never answered anything is not one that goes in good order: it
    /// would else be called again and again, since whatever it does, it has no load.
    fn judge(&self, error: SendError) -> SendError {
        match error {
            SendError::Stale(cause) if !self.proven.load(Relaxed) => SendError::Refused(cause),
            other => other,
        }
    }

    /// One call on this connection; `None` where it takes no more.
    pub(crate) async fn call(self: &Arc<Self>, slot: &mut Slot) -> Result<Option<Reply>, SendError> {
        match self.begin(slot)? {
            Some(opened) => upload::send(opened).await.map(Some),
            None => Ok(None),
        }
    }

    fn refresh_limit(&self) {
        let limit = limit_of(&self.sender.lock().unwrap_or_else(PoisonError::into_inner));
        self.limit.store(limit, Relaxed);
    }

    /// Opens a stream for the request in the slot; `None`, and the request stays, where the connection takes no more.
    fn begin(self: &Arc<Self>, slot: &mut Slot) -> Result<Option<Opened>, SendError> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limit_of(&sender);
        self.limit.store(limit, Relaxed);
        // Says only whether the connection takes requests; never pending, as no request is held back.
        if let Poll::Ready(Err(_)) = sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
            return Ok(None);
        }
        let Some(request) = slot.take() else {
            return Err(SendError::Invalid("there is no request to send".into()));
        };
        let Request { head, body, left } = request;
        // A body that is not at hand is in no other copy of the request.
        let kept = body.rest.is_some().then(|| head.clone());
        if http1::says_upgrade(&head.headers) {
            return Err(SendError::Invalid(NO_UPGRADES.into()));
        }
        let mut head = head.into_http2(left);
        prepare(head.headers_mut(), &body);
        let ends = body.rest.is_none() && body.whole.is_empty();
        let opened = sender.send_request(head, ends);
        let streams = self.streams.load(Relaxed);
        if streams >= limit / 2 {
            // A handle holds back its next request while the one before waits for a place; a fresh one does not. The
            // queue is bounded all the same, since calls beyond the limit go to another connection. Half of the limit,
            // since h2 still counts streams that were cancelled a moment ago.
            let fresh = sender.clone();
            *sender = fresh;
        }
        drop(sender);
        let (answer, sender) = match (opened.map_err(unopened), kept) {
            (Ok(opened), _) => opened,
            // Went away since it was asked a moment ago.
            (Err(SendError::Stale(_)), Some(head)) => {
                *slot = Some(Request { head, body, left });
                return Ok(None);
            }
            (Err(error), _) => return Err(error),
        };
        self.streams.fetch_add(1, Relaxed);
        let place = Stream { shared: Arc::clone(self), upload: None };
        Ok(Some(Opened { place, answer, sender, body }))
    }
}

impl Stream {
    fn answered(self, response: Response<RecvStream>) -> Reply {
        // Looked at first, so that the line stays in every processor's cache.
        if !self.shared.proven.load(Relaxed) {
            self.shared.proven.store(true, Relaxed);
        }
        Reply { response, stream: self }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.streams.fetch_sub(1, Relaxed);
    }
}

/// What HTTP/2 forbids (RFC 9113 8.2.2), and the host, which it says elsewhere. No constant: each use would make them anew.
static FORBIDDEN: [HeaderName; 6] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Takes out what is forbidden and tells the length where the caller did.
fn prepare(headers: &mut HeaderMap, body: &Outgoing) {
    // Looked at in one pass first: nearly no request has any, and a hash for each would be in vain.
    if headers.keys().any(|name| FORBIDDEN.contains(name)) {
        for name in &FORBIDDEN {
            headers.remove(name);
        }
    }
    if let Some(length) = body.declared.filter(|length| *length > 0)
        && !headers::is_grpc(headers)
        && !headers.contains_key(header::CONTENT_LENGTH)
    {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

fn unopened(error: h2::Error) -> SendError {
    // Either the connection went away this moment, or the head cannot be expressed.
    if error.is_io() || error.is_go_away() || error.reason().is_some() {
        SendError::Stale(error.into())
    } else {
        SendError::Invalid(error.into())
    }
}

fn classify(error: h2::Error) -> SendError {
    let reason = error.reason();
    if error.is_remote() && error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM) {
        SendError::Refused(error.into())
    } else if error.is_remote() && error.is_go_away() {
        // h2 ends streams so only when the GOAWAY's last stream id is below theirs: the server has not seen them.
        match reason {
            Some(h2::Reason::NO_ERROR) => SendError::Stale(error.into()),
            // Not for its own going, but for what it thinks of its clients, such as ENHANCE_YOUR_CALM.
            _ => SendError::Refused(error.into()),
        }
    } else {
        SendError::Broken(error.into())
    }
}
