//! The retry loop: makes attempts until one ends the call.

use std::sync::Arc;

use fairmesh_connections::{EndpointPool, EndpointResponse, PendingRequest, SendResult};
use http::Response;
use tracing::Instrument as _;

use super::{
    CallFuture,
    attempt::Attempt,
    authorize::authorize,
    classify::{AttemptInput, classify, endpoint_name, fault_kind},
    context::DispatchContext,
    fault_response::fault_of,
    hedge::{self, HedgedSend},
    pick::pick_endpoint,
    request::{RequestCopy, pending_request},
    route::Routed,
};
use crate::{
    call::{AttemptOutcome, Call, RetryDecision},
    fault::{Fault, carried_fault},
    observe::span,
    response_body::{AttemptGuard, Body},
};

/// Stage of a call's first attempt.
pub(super) enum FirstAttempt {
    /// The attempt is still to be decided.
    Undecided(Routed),
    /// The attempt was decided: its endpoint, and the time of the decision in nanoseconds of the clock.
    Picked(Arc<EndpointPool>, u64),
    /// The attempt has ended with this result.
    Completed(Attempt, Box<SendResult>),
}

impl FirstAttempt {
    /// Whether the attempt's request was not sent yet.
    pub(super) fn is_unsent(&self) -> bool {
        !matches!(self, Self::Completed(..))
    }

    /// Begins the attempt unless it has begun. Returns its result if it has ended.
    async fn begin(
        self,
        dispatch: DispatchContext<'_>,
        call: &mut Call<'_, Arc<EndpointPool>>,
    ) -> Result<(Attempt, Option<Box<SendResult>>), Fault> {
        Ok(match self {
            Self::Undecided(Routed { mut now, snapshot }) => {
                let pool = pick_endpoint(dispatch, call, snapshot, &mut now).await?;
                (Attempt::begin(dispatch.handle, call, pool, now), None)
            }
            Self::Picked(pool, now) => (Attempt::begin(dispatch.handle, call, pool, now), None),
            Self::Completed(attempt, result) => (attempt, Some(result)),
        })
    }
}

/// Authorizes a call without actions, and makes attempts with its pending request as it is.
///
/// Boxed, because it is the largest part: every future around it is moved several times on its way to where it is
/// polled.
pub(super) fn execute_attempts<'a>(
    dispatch: DispatchContext<'a>,
    routed: Routed,
    call: &'a mut Call<'_, Arc<EndpointPool>>,
    pending: &'a mut PendingRequest,
) -> CallFuture<'a> {
    Box::pin(async move {
        let routed = authorize(dispatch, call, &pending_request(pending)?.head, routed).await?;
        execute_allowed(dispatch, routed, call, pending).await
    })
}

/// Makes attempts for an authorized call with a pending request.
pub(super) async fn execute_allowed(
    dispatch: DispatchContext<'_>,
    routed: Routed,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pending: &mut PendingRequest,
) -> Result<Response<Body>, Fault> {
    let needs_copy = call.may_be_sent_twice(&routed.snapshot, dispatch.options);
    let copy = RequestCopy::of(pending_request(pending)?, needs_copy);
    retry_loop(dispatch, FirstAttempt::Undecided(routed), call, pending, copy.as_ref()).await
}

/// Makes attempts until one ends the call.
pub(super) async fn retry_loop(
    dispatch: DispatchContext<'_>,
    first: FirstAttempt,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pending: &mut PendingRequest,
    copy: Option<&RequestCopy>,
) -> Result<Response<Body>, Fault> {
    let mesh = &dispatch.handle.mesh;
    let (mut attempt, mut completed) = first.begin(dispatch, call).await?;
    loop {
        let result = match completed.take() {
            Some(result) => *result,
            None => send_traced(dispatch, call, &mut attempt, pending, copy).await,
        };
        attempt.record_latency(mesh, result.is_ok());
        let input = AttemptInput { call, pool: &attempt.pool, unsent: pending.is_some() };
        let (outcome, response) = classify(dispatch, result, &input);
        dispatch.attempt_ended(call, &attempt, &response);
        if outcome == AttemptOutcome::Responded {
            attempt.poll_load(mesh, call);
        }
        let can_retry = pending.is_some()
            || copy.is_some_and(RequestCopy::is_available)
            || outcome == AttemptOutcome::DeadlineExceeded;
        let decision = match can_retry {
            true => match &response {
                Ok(response) => call.finish_response(outcome, response.status().as_u16(), mesh.seed()),
                Err(_) => call.finish(outcome, mesh.seed()),
            },
            false => {
                call.end(outcome);
                RetryDecision::Done
            }
        };
        match decision {
            RetryDecision::Done | RetryDecision::BudgetExhausted => {
                if decision == RetryDecision::BudgetExhausted {
                    dispatch.handle.count(|counters| &counters.retry_budget_exhausted);
                }
                return conclude(dispatch, call, attempt.pool, response?, outcome);
            }
            _ if !is_pending_again(pending, copy) => {
                return conclude(dispatch, call, attempt.pool, response?, outcome);
            }
            retry => {
                drop((attempt, response));
                back_off(retry, call).await;
            }
        }
        dispatch.handle.count(|counters| &counters.retries);
        let mut now = mesh.clock.now();
        let pool = pick_endpoint(dispatch, call, call.snapshot(), &mut now).await?;
        attempt = Attempt::begin(dispatch.handle, call, pool, now);
    }
}

/// Whether the request can be sent again. Its body is read for the next attempt from now on, even if the previous
/// attempt was still sending it.
fn is_pending_again(pending: &mut PendingRequest, copy: Option<&RequestCopy>) -> bool {
    if pending.is_none() {
        *pending = copy.and_then(RequestCopy::to_request);
    }
    pending.is_some()
}

/// Returns the result of a call from its last response.
fn conclude(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pool: Arc<EndpointPool>,
    response: EndpointResponse,
    outcome: AttemptOutcome,
) -> Result<Response<Body>, Fault> {
    let fault = match dispatch.handle.keeps_fault_responses {
        true => None,
        false => carried_fault(response.headers()),
    };
    let fault = fault.map(|kind| (kind, endpoint_name(call, &pool)));
    let guard = AttemptGuard::of(call, pool, &response, dispatch.handle.mesh.clock);
    let response = Body::from_response(response, guard);
    match fault {
        None => Ok(response),
        Some((kind, endpoint)) => Err(fault_of(kind, &endpoint, response, outcome)),
    }
}

/// Sends the request of an attempt, within a tracing span if spans are recorded.
async fn send_traced(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    attempt: &mut Attempt,
    pending: &mut PendingRequest,
    copy: Option<&RequestCopy>,
) -> SendResult {
    let span = span::of_attempt(call.target().name(), attempt.pool.target(), call.attempts());
    if span.is_disabled() {
        return send_attempt(dispatch, call, attempt, pending, copy).await;
    }
    let sending = send_attempt(dispatch, call, attempt, pending, copy).instrument(span.clone());
    let result = Box::pin(sending).await;
    let status = result.as_ref().map(EndpointResponse::status);
    span::record(&span, status.map_err(fault_kind));
    result
}

/// Sends the request of an attempt, and a hedged request if the route enables hedging. Afterwards `attempt` is the
/// attempt whose result is returned.
async fn send_attempt(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    attempt: &mut Attempt,
    pending: &mut PendingRequest,
    copy: Option<&RequestCopy>,
) -> SendResult {
    if let Some(request) = pending {
        request.left = call.server_deadline(attempt.began);
    }
    dispatch.write_traceparent(pending);
    let timeouts = attempt.timeouts(&dispatch.handle.mesh, call);
    let (Some(after), Some(copy)) = (call.hedge_after(), copy.filter(|copy| copy.is_complete())) else {
        return attempt.pool.send(pending, timeouts).await;
    };
    let hedged = HedgedSend { attempt, pending, timeouts, copy, after };
    Box::pin(hedge::send(dispatch, call, hedged)).await
}

/// Waits before another attempt.
async fn back_off(retry: RetryDecision, call: &Call<'_, Arc<EndpointPool>>) {
    match retry {
        RetryDecision::Retry { after } if !after.is_zero() => Box::pin(tokio::time::sleep(after)).await,
        RetryDecision::AwaitMap { version, at_most } => {
            // After `at_most`, the attempt uses the available map.
            let reached = tokio::time::timeout(at_most, call.target().map_reaches(version));
            let _ = Box::pin(reached).await;
        }
        RetryDecision::Retry { .. } | RetryDecision::Done | RetryDecision::BudgetExhausted => {}
    }
}
