//! A call whose request is passed on as it lies in memory.
//!
//! It is decided, counted and ended by the same core as every call. As soon as anything is unusual, it goes on where it is as one
//! whose request is taken apart: what was decided stays, what was counted is not counted again.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_router::{EndpointTarget, Headers, RequestView};
use http::{Request, Response};
use tokio::time::Instant;

use super::{
    First, Terms, answer::learn_from_plain, carry_on, line_of, request::Copy, tries, unsent, untaken,
};
use crate::{
    BoxError, Fault, FaultKind,
    body::Body,
    core::{Call, Ending, Moment, Start, Undecided, View, nanos},
    poll,
    service::Handle,
    stats::count,
    transport::{Got, Head, Line, Outgoing, Plain, SendError, Silence},
};
use fairmesh_headers::DEADLINE;
use fairmesh_http::h1::{BorrowedRequest, BorrowedResponse, ReceivedResponse};

/// A call whose plain request was sent.
pub struct Passage<'a> {
    handle: &'a Handle,
    call: Call<'a, Arc<Line>>,
    start: Start,
    line: Arc<Line>,
    plain: Plain,
    until: Instant,
    surveyed: Option<u64>,
    /// Whether its body is gone.
    is_forgotten: bool,
    /// What came and was no plain answer; boxed, since that is rare, and connections keep room for what may come.
    other: Option<Box<Result<ReceivedResponse, SendError>>>,
}

/// A call that has begun with a plain request and goes on with one that is taken apart.
pub struct Apart<'a> {
    handle: &'a Handle,
    call: Call<'a, Arc<Line>>,
    start: Start,
    stage: Stage,
    /// Whether the body of its request is gone, which was sent once and is not to be sent again.
    is_forgotten: bool,
}

/// How far it came.
enum Stage {
    /// A limit lets no more through; asked once more, it would count the call once more.
    Refused(Fault),
    Routed,
    Begun(First),
}

/// Fields as routes see them. A host that is not the server's is not among them.
struct PlainHeaders<'a> {
    request: &'a BorrowedRequest<'a>,
    keeps_host: bool,
}

impl Headers for PlainHeaders<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.has(name).then(|| self.request.values(name).next()).flatten()
    }

    fn any(&self, name: &str, sees: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.has(name) && self.request.values(name).any(sees)
    }
}

impl PlainHeaders<'_> {
    fn has(&self, name: &str) -> bool {
        self.keeps_host || name != "host"
    }
}

/// Begins a call with a plain request, which is sent to the host that it names or, unless it `keeps_host`, to the service's
/// own; it `began` when its request came. `None` where it cannot be passed on, and nothing was counted.
#[inline]
pub(crate) fn begin<'a>(
    handle: &'a Handle,
    request: &BorrowedRequest<'_>,
    keeps_host: bool,
    began: Instant,
) -> Option<Result<Passage<'a>, Box<Apart<'a>>>> {
    let (mesh, context) = (&handle.mesh, &handle.context);
    let is_own = handle.deadline.is_some() || handle.marks.key.is_some() || handle.marks.role.is_some();
    if is_own || mesh.observer.is_some() || mesh.source.leases().is_some() {
        return None;
    }
    let own = handle.marks.authority.as_str();
    let host = if keeps_host { request.host } else { own };
    let headers = PlainHeaders { request, keeps_host };
    let view =
        RequestView { host, path: request.path, method: request.method, headers: &headers, grpc: false };
    let start = Start { now: mesh.clock.at(began), limit: None, seed: mesh.seed() };
    let mut call = Call::new(&handle.subscription);
    let apart = |call, stage| Some(Err(Box::new(Apart { handle, call, start, stage, is_forgotten: false })));
    let view = match call.route(&view, context, start) {
        Ok(view) => view,
        Err(undecided) => match *undecided {
            Undecided::Fault(fault) if fault.kind() == FaultKind::RateLimited => {
                count(&mesh.counters.calls);
                count(&mesh.counters.limited);
                return apart(call, Stage::Refused(fault));
            }
            Undecided::Fault(_) | Undecided::Waiting(..) => return None,
        },
    };
    count(&mesh.counters.calls);
    if !is_usual(&view, &call) {
        return apart(call, Stage::Routed);
    }
    let now = start.now;
    let Ok(picked) = call.decide(view, context, Moment { clock: mesh.clock, now, seed: mesh.seed() }) else {
        return apart(call, Stage::Routed);
    };
    let line = line_of(mesh, &call, &picked);
    drop(picked);
    let left = call.given(now).map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    let name = DEADLINE;
    let head = |out: &mut Vec<u8>| request.write(host, left.map(|left| (&name, left)), out);
    let Some(plain) = Plain::begin(&line, head, request.body) else {
        return apart(call, Stage::Begun(First::Chosen(line, now)));
    };
    let surveyed = call.target().poll_limiter.claim_round(now).then_some(now);
    count(&mesh.counters.tries);
    // Its request is whole, and sent with one write nearly always.
    let until = mesh.clock.instant(call.try_ends(now).min(now.saturating_add(nanos(call.response_header()))));
    Some(Ok(Passage { handle, call, start, line, plain, until, surveyed, is_forgotten: false, other: None }))
}

/// Whether a call is of the kind that is passed on.
fn is_usual(view: &View<Arc<Line>>, call: &Call<'_, Arc<Line>>) -> bool {
    let is_passed = matches!(view, View::Ready(ready)
        if ready.lookaside.is_none() && !ready.upstream.protocol().is_multiplexed());
    is_passed && call.treatment().is_none() && call.key().is_none()
}

impl fmt::Debug for Passage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passage").field("endpoint", self.line.target()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Apart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").field("service", self.call.target().name()).finish_non_exhaustive()
    }
}

impl<'a> Passage<'a> {
    /// Decides for the whole call that its request, which was sent, is not sent once more, where that is so anyway; whether the body
    /// is needed no more, and its memory is better used for the next one.
    #[must_use]
    pub fn give_up_body(&mut self) -> bool {
        self.is_forgotten = !self.call.may_be_sent_twice(&self.call.look(), &self.handle.context);
        self.is_forgotten
    }

    /// Waits for the answer; what `take` made of a plain one, and else `None`.
    #[inline]
    pub fn poll<T>(
        &mut self,
        take: impl FnOnce(&BorrowedResponse<'_>, &EndpointTarget, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Option<T>> {
        let (line, clock) = (&*self.line, self.handle.mesh.clock);
        let take = |answer: &BorrowedResponse<'_>, context: &mut Context<'_>| {
            learn_from_plain((line, clock), answer);
            take(answer, line.target(), context)
        };
        let other = match ready!(self.plain.poll(self.until, take, context)) {
            Ok(Got::Plain(taken)) => return Poll::Ready(Some(taken)),
            Ok(Got::Other(answer)) => Ok(answer),
            Err(error) => Err(error),
        };
        self.other = Some(Box::new(other));
        Poll::Ready(None)
    }

    /// The call is over: its plain answer was taken.
    #[inline]
    pub fn end(self) {
        let Self { handle, mut call, start, line, plain, surveyed, .. } = self;
        let mesh = &handle.mesh;
        line.answered(true, start.now, mesh.clock);
        poll::follow(surveyed, mesh, call.target(), &line);
        call.end(Ending::Answered);
        plain.give_back(&line);
    }

    /// The call with its request, of which a copy may be sent once more, taken apart: what was waited for was no plain answer.
    #[cold]
    pub fn into_apart(self) -> Apart<'a> {
        let Self { handle, call, start, line, plain, surveyed, is_forgotten, other, .. } = self;
        let sent = match other.map(|other| *other) {
            Some(Ok(answer)) => Ok(plain.into_reply(answer)),
            Some(Err(SendError::OutOfTime)) | None if handle.mesh.clock.now() < call.deadline() => {
                Err(SendError::Silent(Silence::Response(call.response_header())))
            }
            Some(Err(error)) => Err(error),
            None => Err(SendError::OutOfTime),
        };
        Apart {
            handle,
            call,
            start,
            stage: Stage::Begun(First::Tried(Box::new((line, start.now, (surveyed, sent))))),
            is_forgotten,
        }
    }
}

impl Apart<'_> {
    /// Goes on, as [`ServiceHandle::send`](crate::ServiceHandle::send) does; the request has no body where that was forgotten.
    ///
    /// # Errors
    /// As that has them.
    pub async fn go_on<B>(self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mesh = &self.handle.mesh;
        let answered = self.carry_out(request).await;
        if answered.is_err() {
            count(&mesh.counters.faults);
        }
        answered
    }

    async fn carry_out<B>(self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Self { handle, mut call, start, stage, is_forgotten } = self;
        let (mut parts, body) = request.into_parts();
        let body = Outgoing::take_movable(body).await.map_err(untaken)?;
        let terms = Terms { handle, context: &handle.context, start, trace: None };
        let mut slot = Some(super::Request::new(Head::take(handle, &mut parts)?, body));
        let answer = match stage {
            Stage::Refused(fault) => return Err(fault),
            Stage::Routed => {
                let known = (start.now, call.look());
                return carry_on(terms, &mut call, known, &mut slot).await;
            }
            Stage::Begun(first) => {
                let wanted = !is_forgotten && call.may_be_sent_twice(&call.look(), terms.context);
                let copy = Copy::of(unsent(&mut slot)?, wanted);
                if !first.is_unsent() {
                    slot = None;
                }
                tries(terms, first, &mut call, &mut slot, copy.as_ref()).await
            }
        };
        answer.map_err(|fault| fault.after(call.tries()))
    }
}
