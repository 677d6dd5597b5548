mod conclusion;
mod watch;

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_router::{EndpointTarget, Outcome};
use http::{HeaderMap, Response, header::CONTENT_LENGTH};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use tokio::time::Instant;

pub use self::watch::{BodyEnd, Watch};
use self::{
    conclusion::{Conclusion, WebFrames},
    watch::Watched,
};
use crate::{
    BoxError, Fault, FaultKind,
    core::{Call, Clock},
    send::{learn_from_trailers, violates_protocol},
    transport::{H2Incoming, Incoming, Lent, Line, Reply},
    tunnel::Tunnel,
};
use fairmesh_headers::{CallerProtocol, GRPC_STATUS, WEB_TEXT, is_event_stream, is_server_error};

/// The body of an answer; also a simple body for requests.
///
/// The try that it belongs to counts as outstanding until the body was read to its end, failed or is dropped.
pub struct Body {
    source: Source,
    attempt: Option<Attempt>,
    watched: Watched,
    conclusion: Conclusion,
}

enum Source {
    Whole(Option<Bytes>),
    H1(Incoming),
    H2(H2Incoming),
    Foreign(UnsyncBoxBody<Bytes, BoxError>),
}

/// An answer that has kept its reader waiting, and goes on after this time, is a stream; servers wait as long.
const STREAM_AFTER: Duration = Duration::from_secs(1);

/// Why a response is cut off.
enum Late {
    /// The deadline has passed.
    Deadline,
    /// Nothing moved for this long.
    Silence(Duration),
}

/// The try whose answer this is: outstanding until this is dropped.
pub(crate) struct Attempt {
    line: Arc<Line>,
    clock: Clock,
    outcome: Outcome,
    deadline: Instant,
    /// For which nothing may move.
    idle: Duration,
    /// Since when the reader waits, while it does.
    waits_since: Option<Instant>,
    /// Rings when the answer is a stream, and when it is late. Taken when the body first keeps its reader waiting, which most never
    /// do.
    alarm: Option<Lent>,
    /// When the answer counts as a stream, until it does.
    stream_at: Option<Instant>,
    is_stream: bool,
    /// Whether the try is over, and this is kept for what it tells.
    ended: bool,
    tries: usize,
}

impl Body {
    /// A body without bytes.
    pub fn empty() -> Self {
        Self::of(Source::Whole(None), None)
    }

    fn of(source: Source, attempt: Option<Attempt>) -> Self {
        Self { source, attempt, watched: Watched::default(), conclusion: Conclusion::default() }
    }

    /// A body of an answer that was got otherwise than by a call, for those who hand on both.
    pub fn foreign<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self::of(Source::Foreign(body.map_err(Into::into).boxed_unsync()), None)
    }

    /// The answer as the caller gets it.
    pub(crate) fn answer(reply: Reply, attempt: Option<Attempt>) -> Response<Self> {
        let mut response = match reply {
            Reply::H1(reply) => reply.response.map(|body| Self::of(Source::H1(body), attempt)),
            Reply::H2(reply) => reply.map(|body| Self::of(Source::H2(body), attempt)),
        };
        // After 101 the try goes on with what the connection carries from there on.
        if response.body().source.is_end() && !response.body().source.is_switched() {
            response.body_mut().end();
        }
        response
    }

    /// The connection behind an answer of status 101, which carries the protocol that the request asked for; `None` of any other
    /// answer. The call's deadline ends nothing there.
    pub fn into_tunnel(self) -> Option<Tunnel> {
        let (Source::H1(body), Some(attempt)) = (self.source, self.attempt) else { return None };
        let (io, input, open) = body.into_raw()?;
        Some(Tunnel::new(io, input, open, attempt))
    }

    /// The body was read to its end: the try is over, and the connection may carry another.
    fn end(&mut self) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| !attempt.ended) else { return };
        if let Source::H1(body) = &mut self.source {
            body.give_back(&attempt.line);
        }
        attempt.end();
    }

    /// The server whose answer this is, and how many tries it took; `None` of a body that is no answer, or broke off.
    pub fn answered_by(&self) -> Option<(&EndpointTarget, usize)> {
        self.attempt.as_ref().map(|attempt| (attempt.line.target(), attempt.tries))
    }

    /// Has a response of gRPC or gRPC-Web end with its status where its time runs out in the middle, and not with a fault, as far as its
    /// protocol allows; `has_trailers`: whether its caller can be sent trailers.
    pub fn end_with_status(response: &mut Response<Self>, has_trailers: bool) {
        let is_framed = response.headers().contains_key(CONTENT_LENGTH);
        let caller = CallerProtocol::of(response.headers());
        let body = response.body_mut();
        if is_framed || body.source.is_end() {
            return;
        }
        body.conclusion = match caller {
            CallerProtocol::Grpc(_) if has_trailers => Conclusion::Trailers,
            CallerProtocol::GrpcWeb(kind) => {
                Conclusion::Web(Box::new(WebFrames::new(kind.as_bytes().starts_with(WEB_TEXT.as_bytes()))))
            }
            CallerProtocol::Grpc(_) | CallerProtocol::Http => Conclusion::Fault,
        };
    }

    /// Has somebody see it go by, to its end. One that is at its end already is seen to end at once.
    pub fn watch(&mut self, watch: Arc<dyn Watch>) {
        match self.source.is_end() {
            true => watch.ended(BodyEnd::Whole),
            false => self.watched = Watched(Some(watch)),
        }
    }

    /// The body broke off: the endpoint is blamed and the connection closed.
    fn broken(&mut self, kind: FaultKind, message: &str, cause: Option<BoxError>) -> Fault {
        if let Some(mut attempt) = self.attempt.take() {
            attempt.outcome = Outcome::Failed;
        }
        self.source = Source::Whole(None);
        let fault = Fault::new(kind, message);
        match cause {
            Some(cause) => fault.caused_by(cause),
            None => fault,
        }
    }

    /// Why it is cut off, where it is, while the server keeps the reader waiting.
    fn late(&mut self, context: &mut Context<'_>) -> Option<Late> {
        let attempt = self.attempt.as_mut()?;
        attempt.late(self.source.last_moved(), context)
    }

    /// Its time is over: what its reader is told.
    #[cold]
    fn cut_off(&mut self, late: &Late) -> Result<Frame<Bytes>, Fault> {
        let message = match late {
            Late::Deadline => "the time for the call ran out in the middle of the response".to_owned(),
            Late::Silence(idle) => format!(
                "nothing moved for {idle:?} in the middle of the response; a deadline of the call, or idleTimeout of its route, \
                 allows more"
            ),
        };
        let conclusion = mem::take(&mut self.conclusion);
        let fault = self.broken(FaultKind::Deadline, &message, None);
        conclusion.frame(&fault).ok_or(fault)
    }
}

impl Source {
    fn is_end(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::H1(body) => body.is_end_stream(),
            Self::H2(body) => body.is_end_stream(),
            Self::Foreign(body) => body.is_end_stream(),
        }
    }

    /// When the request last moved, where the rest of it is sent meanwhile.
    fn last_moved(&self) -> Option<Instant> {
        match self {
            Self::H1(body) => body.last_moved(),
            Self::H2(body) => body.last_moved(),
            Self::Whole(_) | Self::Foreign(_) => None,
        }
    }

    fn is_switched(&self) -> bool {
        matches!(self, Self::H1(body) if body.is_switched())
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::H1(body) => Pin::new(body).poll_frame(context),
            Self::H2(body) => Pin::new(body).poll_frame(context),
            Self::Foreign(body) => Pin::new(body).poll_frame(context),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let this = self.get_mut();
        let polled = this.poll(context);
        if let Poll::Ready(polled) = &polled
            && this.watched.0.is_some()
        {
            this.watched.see(polled.as_ref(), this.source.is_end());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Source::H1(body) => body.size_hint(),
            Source::H2(_) => SizeHint::new(),
            Source::Foreign(body) => body.size_hint(),
        }
    }
}

impl Body {
    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self.source.poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.conclusion.see(&frame);
                if let Some(attempt) = &mut self.attempt {
                    attempt.waits_since = None;
                    if let Some(trailers) = frame.trailers_ref() {
                        attempt.learn(trailers);
                    }
                }
                if frame.is_trailers() || self.source.is_end() {
                    self.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(cause))) => {
                let (kind, message) = if violates_protocol(&cause) {
                    (FaultKind::Protocol, "the server broke the protocol in the middle of the answer")
                } else {
                    let message = "the connection broke in the middle of the answer; the call may have been carried out";
                    (FaultKind::Reset, message)
                };
                Poll::Ready(Some(Err(self.broken(kind, message, Some(cause)))))
            }
            Poll::Pending => match self.late(context) {
                None => Poll::Pending,
                Some(late) => Poll::Ready(Some(self.cut_off(&late))),
            },
        }
    }
}

impl Attempt {
    /// Takes over the try that a call has under way on this line, which got this reply.
    pub(crate) fn of(
        call: &mut Call<'_, Arc<Line>>,
        line: Arc<Line>,
        reply: &Reply,
        clock: Clock,
    ) -> Option<Self> {
        let idle = call.response_idle(|| is_event_stream(reply.head().1));
        Self::with(call, line, idle, clock)
    }

    /// The same where it became a tunnel, whose silence is its users' own.
    pub(crate) fn of_tunnel(call: &mut Call<'_, Arc<Line>>, line: Arc<Line>, clock: Clock) -> Option<Self> {
        Self::with(call, line, Duration::from_nanos(u64::MAX), clock)
    }

    fn with(call: &mut Call<'_, Arc<Line>>, line: Arc<Line>, idle: Duration, clock: Clock) -> Option<Self> {
        let (outcome, tries) = (call.hand_over()?, call.tries());
        Some(Self {
            line,
            clock,
            outcome,
            deadline: clock.instant(call.ends()),
            idle,
            waits_since: None,
            alarm: None,
            stream_at: None,
            is_stream: false,
            ended: false,
            tries,
        })
    }

    /// Why the body is cut off that keeps its reader waiting, where it is; `moved`: when the rest of its request last did. From a
    /// while on it counts as a stream, as on the server's side (Uber, assisted balancing); by a timer, since one that stays silent is never read again.
    fn late(&mut self, moved: Option<Instant>, context: &mut Context<'_>) -> Option<Late> {
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        if self.alarm.is_none() {
            self.stream_at = Some(since + STREAM_AFTER);
        }
        let alarm = self.alarm.get_or_insert_with(Lent::take);
        let silent = moved.map_or(since, |moved| moved.max(since)) + self.idle;
        let due = silent.min(self.deadline);
        if let Some(at) = self.stream_at.filter(|at| *at < due) {
            if !alarm.has_rung(at, context) {
                return None;
            }
            self.stream_at = None;
            self.is_stream = self.line.endpoint().becomes_stream();
        }
        alarm.has_rung(due, context).then(|| match self.deadline <= silent {
            true => Late::Deadline,
            false => Late::Silence(self.idle),
        })
    }

    /// Counts as a stream from now on, since nobody knows how long it will take.
    pub(crate) fn into_stream(mut self) -> Self {
        self.is_stream = self.line.endpoint().becomes_stream();
        self
    }

    /// Where it goes.
    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Learns what trailers say: how busy the gRPC server is, and whether it failed.
    fn learn(&mut self, trailers: &HeaderMap) {
        let erred = trailers.get(&GRPC_STATUS).is_some_and(|status| is_server_error(status.as_bytes()));
        learn_from_trailers((&self.line, self.clock), trailers, !erred);
        if erred {
            self.outcome = Outcome::Failed;
        }
    }
}

impl Attempt {
    /// Counts the end of the try, once.
    fn end(&mut self) {
        if mem::replace(&mut self.ended, true) {
            return;
        }
        let is_dated = matches!(self.outcome, Outcome::Failed | Outcome::Overloaded);
        let now = if is_dated { self.clock.now() } else { 0 };
        match self.is_stream {
            true => self.line.endpoint().finish_stream(self.outcome, now),
            false => self.line.endpoint().finish(self.outcome, now),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.end();
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::of(Source::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())), None)
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.source {
            Source::Whole(_) => "whole",
            Source::H1(_) => "http/1.1",
            Source::H2(_) => "http/2",
            Source::Foreign(_) => "foreign",
        };
        f.debug_struct("Body")
            .field("source", &kind)
            .field("ended", &self.source.is_end())
            .finish_non_exhaustive()
    }
}
