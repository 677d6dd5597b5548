//! Connections of HTTP/2.

use std::{
    error::Error,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::BytesMut;
use fairmesh_http::h2::{ConnectionError, RequestBody, ServerConnection, Shared, Violation, lock};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::{Request, header};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, sleep_until, timeout},
};

use super::Serving;
use crate::{
    forward::Origin,
    lean::Date,
    metrics::count,
    recycled::Recycled,
    restless::Restless,
    stopping::Stopping,
    streams::{LastWord, Streamed},
    untaken::Answers,
};

/// How often a quiet connection is probed, and how long the answer may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// How long a program may take to hear why it is cut off.
const FAREWELL: Duration = Duration::from_secs(5);

/// One connection, as its requests need to know it.
struct Talk {
    origin: Origin,
    /// A request came.
    was_asked: AtomicBool,
    last_word: Arc<LastWord>,
    restless: Arc<Restless>,
    answers: Answers<Streamed>,
}

/// Why a connection is cut off that would go on.
enum Verdict {
    /// Nothing was asked in time.
    Silent,
    /// Nobody is there.
    Deaf,
    /// Its program takes back most of what it asks.
    Restless,
    /// The proxy stops.
    Cut,
}

impl Serving {
    pub(super) async fn http2<I>(&self, stream: I, read: BytesMut, origin: Origin)
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let (metrics, caller) = (&self.forwarder.metrics, origin.caller);
        let talk = Arc::new(Talk {
            origin,
            was_asked: AtomicBool::new(false),
            last_word: Arc::default(),
            restless: Arc::default(),
            answers: Answers::default(),
        });
        let mut connection = ServerConnection::new(stream, read, self.answers_http2(&talk));
        let session = connection.session();
        // Looked at only when it has something to say, which is nearly never.
        let mut verdict = FuturesUnordered::from_iter([Box::pin(self.verdict(&talk, &session))]);
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            Some(verdict) = verdict.next() => match verdict {
                Verdict::Silent | Verdict::Deaf => return count(&metrics.broken),
                Verdict::Cut => return count(&metrics.cut),
                Verdict::Restless => {
                    count(&metrics.restless);
                    // Who does not even take that is cut off.
                    let _ = timeout(FAREWELL, connection.refuse(Violation::RAPID_RESET)).await;
                    return;
                }
            },
        };
        let Err(error) = ended else { return };
        match error {
            ConnectionError::Violation(Violation::FLOOD) => count(&metrics.flooding),
            _ => count(&metrics.broken),
        }
        tracing::debug!(error = &error as &dyn Error, %caller, "a connection ended early");
    }

    /// Waits until a connection is to be cut off.
    async fn verdict(&self, talk: &Talk, session: &Shared) -> Verdict {
        tokio::select! {
            () = silence(talk, self.limits.head) => Verdict::Silent,
            never = talk.answers.look(self.limits.head, &self.forwarder.metrics) => match never {},
            () = talk.restless.enough() => Verdict::Restless,
            () = unheard(session) => Verdict::Deaf,
            () = self.deadline(talk, session) => Verdict::Cut,
        }
    }

    /// Ends at the deadline of a stop, before which the program is told.
    async fn deadline(&self, talk: &Talk, session: &Shared) {
        let deadline = self.stopping.begun().await;
        lock(session).go_away();
        sleep_until(Stopping::last_word(deadline)).await;
        talk.last_word.say();
        sleep_until(deadline).await;
    }

    /// Answers the requests of one connection.
    fn answers_http2(&self, talk: &Arc<Talk>) -> impl FnMut(Request<RequestBody>) -> Recycled + use<> {
        let (forwarder, talk) = (Arc::clone(&self.forwarder), Arc::clone(talk));
        move |request| {
            talk.was_asked.store(true, Relaxed);
            let (forwarder, talk) = (Arc::clone(&forwarder), Arc::clone(&talk));
            let waiting = talk.restless.begin();
            Recycled::new(async move {
                let mut answer = forwarder.answer(request, &talk.origin).await;
                waiting.answered();
                answer.headers_mut().entry(header::DATE).or_insert_with(Date::value);
                talk.answers.watch(Streamed::answer(answer, &talk.last_word))
            })
        }
    }
}

/// Ends where no request came in time, and never otherwise.
async fn silence(talk: &Talk, patience: Duration) {
    sleep(patience).await;
    if talk.was_asked.load(Relaxed) {
        pending::<()>().await;
    }
}

/// Ends when nothing comes any more, not even when asked for.
async fn unheard(session: &Shared) {
    let (interval, patience) = KEEP_ALIVE;
    loop {
        sleep(interval).await;
        if lock(session).take_activity() {
            continue;
        }
        lock(session).send_ping();
        sleep(patience).await;
        if !lock(session).take_activity() {
            return;
        }
    }
}
