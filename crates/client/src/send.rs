//! One call over the network: tries, each decided and finished by the core, sent over a line.

mod answer;
mod hedge;
mod leased;
mod mirror;
mod passage;
mod request;
mod terms;
mod treated;
mod tunnel;

use std::{mem, sync::Arc, time::Duration};

use http::{Response, request::Parts};

pub use self::passage::{Apart, Passage};
use self::{answer::judge, request::Copy, terms::Terms};
pub(crate) use self::{
    answer::{learn_from_trailers, violates_protocol},
    passage::begin as pass,
    request::{View as HeadersView, authority},
    tunnel::{connect, open},
};
use crate::{
    BoxError, Fault, FaultKind, Retry,
    body::{Attempt, Body},
    core::{
        Call, Chosen, Clock, Ending, FIRST_CONTACT, Moment, Next, Sight, Start, Subscription, Undecided,
        View, nanos, no_view,
    },
    mesh::Shared,
    poll,
    service::Handle,
    stats::count,
    trace::Trace,
    transport::{Head, Line, Outgoing, Request, Sent, Slot, Times},
};
use fairmesh_headers::WRONG_SHARD;

/// What a caller is told of a call that may have reached a server.
const MAYBE: &str = "it may have been carried out";

/// Carries a call out. Its body was taken over already.
///
/// Whatever is large is borrowed from here on: a future holds what it was given beside what it makes of it, and is moved with
/// all of it to where it is polled.
pub(crate) async fn call(
    handle: &Handle,
    parts: &mut Parts,
    body: &mut Outgoing,
) -> Result<Response<Body>, Fault> {
    let mesh = &handle.mesh;
    count(&mesh.counters.calls);
    let answered = carry_out(handle, parts, body).await;
    if answered.is_err() {
        count(&mesh.counters.faults);
    }
    answered
}

async fn carry_out(handle: &Handle, parts: &mut Parts, body: &mut Outgoing) -> Result<Response<Body>, Fault> {
    let now = handle.mesh.clock.now();
    let (context, limit) = handle.terms(parts)?;
    let start = Start { now, limit, seed: handle.mesh.seed() };
    let trace = parts.extensions.get::<Trace>().cloned();
    let terms = Terms { handle, context: &context, start, trace: trace.as_ref() };
    if limit.is_some_and(|left| left.is_zero()) {
        return Err(terms.late(now, "nothing was sent").with_retry(Retry::Unsent));
    }
    let body = mem::replace(body, Outgoing::empty());
    let mut slot = Some(Request::new(Head::take(handle, parts)?, body));
    let mut call = Call::new(&handle.subscription);
    let routed = route(terms, &mut call, &unsent(&mut slot)?.head).await?;
    carry_on(terms, &mut call, routed, &mut slot).await
}

/// What is to be sent.
fn unsent(slot: &mut Slot) -> Result<&mut Request, Fault> {
    slot.as_mut().ok_or_else(|| Fault::new(FaultKind::Invalid, "there is no request to send"))
}

/// What is said of a body that could not be taken over.
pub(crate) fn untaken(error: BoxError) -> Fault {
    Fault::new(FaultKind::Invalid, "the request's body failed").caused_by(error)
}

/// Carries out a call that is routed, by what is known of its service and since when.
async fn carry_on(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    routed: (u64, Sight<Arc<Line>>),
    slot: &mut Slot,
) -> Result<Response<Body>, Fault> {
    let (known, leased) = leased::turn(terms, call, routed, slot.as_ref().map(|request| &request.head)).await;
    if let Some(key) = call.key() {
        unsent(slot)?.head.write_key(key);
    }
    let answer = if let Some(treatment) = call.treatment().cloned() {
        drop(known);
        Box::pin(treated::send(terms, &treatment, call, slot)).await
    } else {
        go(terms, known, call, slot).await
    };
    if let (Some(leased), Ok(answer)) = (leased, &answer)
        && answer.headers().contains_key(&WRONG_SHARD)
    {
        leased.expire();
    }
    answer.map_err(|fault| fault.after(call.tries()))
}

/// Makes tries with a request as it is.
async fn go(
    terms: Terms<'_>,
    (now, view): (u64, Sight<Arc<Line>>),
    call: &mut Call<'_, Arc<Line>>,
    slot: &mut Slot,
) -> Result<Response<Body>, Fault> {
    let copy = Copy::of(unsent(slot)?, call.may_be_sent_twice(&view, terms.context));
    // In a box, as the largest part: every future around it is moved several times on its way to where it is polled.
    let first = First::Undecided(now, view);
    Box::pin(async move { tries(terms, first, call, slot, copy.as_ref()).await }).await
}

/// How far the first try has come.
enum First {
    /// It is to be decided at this time by this.
    Undecided(u64, Sight<Arc<Line>>),
    /// It was decided at this time, and goes there.
    Chosen(Arc<Line>, u64),
    /// It was made: where and when, and what came of it.
    Tried(Box<Tried>),
}

/// A try that was made: where and when it was decided, and what came of it.
type Tried = (Arc<Line>, u64, Made);

/// What came of a try, and when it began where a survey follows it.
type Made = (Option<u64>, Sent);

impl First {
    fn is_unsent(&self) -> bool {
        !matches!(self, Self::Tried(_))
    }
}

/// Routes the call, waiting where its service is not known yet; says when that was, so that the first try need not read
/// the clock again, and what that is decided by.
async fn route(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    head: &Head,
) -> Result<(u64, Sight<Arc<Line>>), Fault> {
    let Terms { handle, context, start, .. } = terms;
    let headers = HeadersView(&head.headers);
    let mut now = start.now;
    if head.is_grpc_web() {
        call.expect_stream();
    }
    loop {
        match call.route(&head.view(&headers), context, start) {
            Ok(view) => {
                terms.routed(call, head);
                return Ok((now, view));
            }
            Err(undecided) => {
                if let Undecided::Fault(fault) = *undecided {
                    if fault.kind() == FaultKind::RateLimited {
                        count(&handle.mesh.counters.limited);
                        terms.routed(call, head);
                    }
                    return Err(fault);
                }
                let limits = [start.limit, context.timeout];
                let first = limits.into_iter().flatten().min().unwrap_or(FIRST_CONTACT);
                Box::pin(ready(&handle.subscription, first)).await?;
                now = handle.mesh.clock.now();
            }
        }
    }
}

/// Makes tries until one ends the call.
async fn tries(
    terms: Terms<'_>,
    first: First,
    call: &mut Call<'_, Arc<Line>>,
    slot: &mut Slot,
    copy: Option<&Copy>,
) -> Result<Response<Body>, Fault> {
    let mesh = &terms.handle.mesh;
    let (mut line, mut now, mut tried) = begun(terms, call, first).await?;
    loop {
        let (surveyed, sent) = match tried.take() {
            Some(tried) => tried.2,
            None => {
                // Claimed as it begins: the one that happened to end first would speak for short ones only.
                let surveyed = call.target().poll_limiter.claim_round(now).then_some(now);
                count(&mesh.counters.tries);
                (surveyed, one_try(terms, call, (&mut line, &mut now), slot, copy).await)
            }
        };
        line.answered(sent.is_ok(), now, mesh.clock);
        let (ending, answer) = judge(sent, slot.is_some(), terms, call, &line);
        terms.tried(call, (&line, now), &answer);
        poll::follow(surveyed.filter(|_| ending == Ending::Answered), mesh, call.target(), &line);
        let next = match slot.is_some() || copy.is_some() || ending == Ending::Late {
            true => call.finish(ending, mesh.seed()),
            false => {
                call.end(ending);
                Next::Done
            }
        };
        match next {
            Next::Done | Next::Exhausted => {
                if next == Next::Exhausted {
                    count(&mesh.counters.retries_refused);
                }
                return answer.map(|reply| {
                    let attempt = Attempt::of(call, line, &reply, mesh.clock);
                    Body::answer(reply, attempt)
                });
            }
            again => {
                drop((line, answer));
                pause(again, call).await;
            }
        }
        count(&mesh.counters.retries);
        now = mesh.clock.now();
        if slot.is_none() {
            *slot = copy.map(Copy::request);
        }
        line = decide(terms, call, call.look(), &mut now).await?;
    }
}

/// The first try as far as it has come: where it goes, when it was decided, and the same with what came of it where it was
/// made.
async fn begun(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    first: First,
) -> Result<(Arc<Line>, u64, Option<Box<Tried>>), Fault> {
    Ok(match first {
        First::Undecided(mut now, view) => (decide(terms, call, view, &mut now).await?, now, None),
        First::Chosen(line, now) => (line, now, None),
        First::Tried(tried) => (Arc::clone(&tried.0), tried.1, Some(tried)),
    })
}

/// Waits before another try as long as there is to be waited.
async fn pause(again: Next, call: &Call<'_, Arc<Line>>) {
    match again {
        Next::Retry { after } if !after.is_zero() => Box::pin(tokio::time::sleep(after)).await,
        Next::Refresh { version, at_most } => {
            // Whatever is known by then is tried.
            let reached = tokio::time::timeout(at_most, call.target().map_reaches(version));
            let _ = Box::pin(reached).await;
        }
        Next::Retry { .. } | Next::Done | Next::Exhausted => {}
    }
}

/// Makes one try, and another beside it where the route wants that: `line` and `now`, when it began, are then those of the one
/// that is heard.
async fn one_try(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    (line, now): (&mut Arc<Line>, &mut u64),
    slot: &mut Slot,
    copy: Option<&Copy>,
) -> Sent {
    let clock = terms.handle.mesh.clock;
    if let Some(request) = slot {
        request.left = call.given(*now);
    }
    terms.mark(slot);
    let times = times(call, *now, clock);
    let (Some(after), Some(copy)) = (call.hedge_after(), copy) else {
        return line.send(slot, times).await;
    };
    let mut attempt = hedge::Attempt { line, slot, now, times };
    Box::pin(hedge::send(terms, call, &mut attempt, copy, after)).await
}

/// Until when the steps of a try that begins now may take.
fn times(call: &Call<'_, Arc<Line>>, now: u64, clock: Clock) -> Times {
    let until = call.try_ends(now);
    // Half, so that a server that is gone does not cost the call: the rest is for another one.
    let connected_by = until.min(now + nanos(call.left_before_request(now)) / 2);
    Times {
        begun: clock.instant(now),
        connected_by: clock.instant(connected_by),
        until: clock.instant(until),
        response_header: call.response_header(),
        idle: call.idle(),
    }
}

/// Waits for a snapshot to decide with, at most for `timeout`.
pub(crate) async fn ready(
    subscription: &Arc<Subscription<Arc<Line>>>,
    timeout: Duration,
) -> Result<Arc<View<Arc<Line>>>, Fault> {
    let view = subscription.view();
    if let View::Ready(_) = &*view {
        return Ok(view);
    }
    let wait = async {
        let mut view = view;
        loop {
            match &*view {
                View::Ready(_) => return Ok(view),
                other => {
                    if let Some(fault) = no_view(subscription, other) {
                        return Err(fault);
                    }
                }
            }
            subscription.newer(&view).await;
            view = subscription.view();
        }
    };
    tokio::time::timeout(timeout, wait).await.unwrap_or_else(|_| Err(unknown(subscription)))
}

/// The fault of a call whose service nothing was heard of in time.
#[cold]
fn unknown(subscription: &Subscription<Arc<Line>>) -> Fault {
    let name = subscription.name();
    let message =
        format!("{name}: the agent did not say in time where it runs; see `fairmesh agent` and its log");
    Fault::new(FaultKind::Unavailable, message)
}

/// Chooses the endpoint of the next try, waiting where its service is not known yet; `now` stays the time.
async fn decide(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    mut view: Sight<Arc<Line>>,
    now: &mut u64,
) -> Result<Arc<Line>, Fault> {
    let mesh = &terms.handle.mesh;
    loop {
        let at = Moment { clock: mesh.clock, now: *now, seed: mesh.seed() };
        terms.decides(call, &view, at);
        let undecided = match call.decide(view, terms.context, at) {
            Ok(chosen) => {
                let line = line_of(mesh, call, &chosen);
                terms.chose(call, &line, &chosen);
                return Ok(line);
            }
            Err(undecided) => *undecided,
        };
        match undecided {
            Undecided::Fault(fault) => {
                count(&mesh.counters.unroutable);
                return Err(fault);
            }
            Undecided::Waiting(subscription, seen) => {
                let left = call.left_before_request(*now);
                if Box::pin(tokio::time::timeout(left, subscription.newer(&seen))).await.is_err() {
                    return Err(match call.has_deadline() {
                        true => terms.late(call.deadline(), MAYBE),
                        false => unknown(&subscription),
                    });
                }
                *now = mesh.clock.now();
                view = call.look();
            }
        }
    }
}

/// Where the next try goes, which is counted where the choice was not a usual one.
#[inline]
fn line_of(mesh: &Shared, call: &Call<'_, Arc<Line>>, chosen: &Chosen<Arc<Line>>) -> Arc<Line> {
    if call.picked().is_some_and(|picked| picked.last_resort) {
        count(&mesh.counters.last_resort);
    }
    if call.picked().is_some_and(|picked| picked.panic) {
        count(&mesh.counters.panics);
    }
    chosen.lane(&mesh.wiring)
}
