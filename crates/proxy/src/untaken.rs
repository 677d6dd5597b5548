//! Answers that their program does not take (HTTP/2).
//!
//! A stream without a window is nothing to the system, which sees a connection on which pings are answered; but its answer
//! holds a connection to a server. A body is asked for more only when there is room, so that no timer in the body itself is
//! ever looked at: the connection looks at all of its answers now and then.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::{Fault, FaultKind};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, interval_at};

use crate::metrics::{Metrics, count};

/// Dead entries that may gather before they are thrown out: as many as there may be streams, so that this is done once for so
/// many requests.
const GATHERED: usize = 512;

/// The answers of one connection.
#[derive(Debug)]
pub(crate) struct Answers<B> {
    open: Mutex<Vec<Weak<Answer<B>>>>,
}

/// An answer whose body can be taken away from its reader.
#[derive(Debug)]
struct Answer<B> {
    body: Mutex<Option<B>>,
    turn: AtomicU8,
}

/// The server has to go on.
const SERVERS: u8 = 0;
/// The program has to make room.
const PROGRAMS: u8 = 1;
/// The same, when the connection looked last.
const STILL: u8 = 2;

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum AnswerBody<B> {
    /// One that is over.
    Plain(B),
    /// One that is looked at.
    Watched(Watched<B>),
}

/// A body that is gone once its reader has not asked for it for long.
#[derive(Debug)]
pub(crate) struct Watched<B>(Arc<Answer<B>>);

impl<B> Default for Answers<B> {
    fn default() -> Self {
        Self { open: Mutex::default() }
    }
}

impl<B: Body> Answers<B> {
    /// The answer, to be looked at until its body is dropped.
    pub(crate) fn watch(&self, answer: Response<B>) -> Response<AnswerBody<B>> {
        answer.map(|body| {
            if body.is_end_stream() {
                return AnswerBody::Plain(body);
            }
            let answer = Arc::new(Answer { body: Mutex::new(Some(body)), turn: AtomicU8::new(PROGRAMS) });
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.len() >= GATHERED {
                open.retain(|answer| answer.strong_count() > 0);
            }
            open.push(Arc::downgrade(&answer));
            AnswerBody::Watched(Watched(answer))
        })
    }

    /// Takes away, as long as this is polled, what nobody has asked for in this time; in half of it at the earliest.
    pub(crate) async fn look(&self, patience: Duration, metrics: &Metrics) -> Infallible {
        let every = (patience / 2).max(Duration::from_millis(1));
        let mut looks = interval_at(Instant::now() + every, every);
        loop {
            looks.tick().await;
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|answer| answer.upgrade().is_some_and(|answer| !answer.is_given_up(metrics)));
        }
    }
}

impl<B> Answer<B> {
    fn is_given_up(&self, metrics: &Metrics) -> bool {
        match self.turn.load(Relaxed) {
            STILL => {
                let mut body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
                // It may have been asked for this moment.
                let given_up = self.turn.load(Relaxed) == STILL;
                if given_up {
                    count(&metrics.untaken);
                    *body = None;
                }
                given_up
            }
            PROGRAMS => {
                // Where the program has asked in between, this says that it has not, and the next look finds otherwise.
                let _ = self.turn.compare_exchange(PROGRAMS, STILL, Relaxed, Relaxed);
                false
            }
            _ => false,
        }
    }
}

impl<B> Watched<B> {
    fn read<T>(&self, read: impl FnOnce(Option<&mut B>) -> T) -> T {
        read(self.0.body.lock().unwrap_or_else(PoisonError::into_inner).as_mut())
    }
}

impl<B> Body for AnswerBody<B>
where
    B: Body<Data = Bytes, Error = Fault> + Unpin,
{
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let watched = match &mut *self {
            Self::Plain(body) => return Pin::new(body).poll_frame(context),
            Self::Watched(watched) => watched,
        };
        watched.read(|body| {
            let Some(body) = body else {
                let late = Fault::new(FaultKind::Deadline, "nobody made room for the answer");
                return Poll::Ready(Some(Err(late)));
            };
            let polled = Pin::new(body).poll_frame(context);
            watched.0.turn.store(if polled.is_pending() { SERVERS } else { PROGRAMS }, Relaxed);
            polled
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Watched(watched) => watched.read(|body| body.is_some_and(|body| body.is_end_stream())),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Watched(watched) => {
                watched.read(|body| body.map_or_else(SizeHint::new, |body| body.size_hint()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Waker};

    use fairmesh_client::Body;
    use http_body::Body as _;

    use super::*;

    fn look_once(answers: &Answers<Body>, metrics: &Metrics) {
        let mut open = answers.open.lock().unwrap();
        open.retain(|answer| answer.upgrade().is_some_and(|answer| !answer.is_given_up(metrics)));
    }

    fn untaken(metrics: &Metrics) -> u64 {
        metrics.untaken.load(Relaxed)
    }

    #[tokio::test]
    async fn what_nobody_asks_for_twice_is_taken_away() {
        let (answers, metrics) = (Answers::default(), Metrics::default());
        let mut taken = answers.watch(Response::new(Body::from("tea"))).into_body();
        let mut left = answers.watch(Response::new(Body::from("tea"))).into_body();
        assert_eq!(left.size_hint().exact(), taken.size_hint().exact());
        look_once(&answers, &metrics);
        let frame = poll_fn(|context| Pin::new(&mut taken).poll_frame(context)).await;
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "tea");
        look_once(&answers, &metrics);
        assert_eq!(untaken(&metrics), 1);
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut left).poll_frame(&mut context), Poll::Ready(Some(Err(_)))));
        assert!(matches!(Pin::new(&mut taken).poll_frame(&mut context), Poll::Ready(None)));
        drop((taken, left));
        look_once(&answers, &metrics);
        assert!(answers.open.lock().unwrap().is_empty());
    }

    #[test]
    fn an_answer_that_is_over_is_not_looked_at_and_dead_ones_do_not_gather() {
        let answers = Answers::default();
        assert!(matches!(answers.watch(Response::new(Body::empty())).body(), AnswerBody::Plain(_)));
        for _ in 0..4 * GATHERED {
            drop(answers.watch(Response::new(Body::from("tea"))));
        }
        assert!(answers.open.lock().unwrap().len() <= GATHERED);
    }
}
