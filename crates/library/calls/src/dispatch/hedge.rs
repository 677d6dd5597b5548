//! Hedged requests: a second attempt while a slow one is in flight (Dean and Barroso, The Tail at Scale, 2013). Only
//! for calls that may be repeated, within the retry budget, and at another endpoint. The first response is used, and
//! the other attempt is cancelled.

use std::{
    mem,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use fairmesh_connections::{AttemptTimeouts, EndpointPool, PendingRequest, Request, SendResult};
use tokio::time::sleep;

use super::{
    attempt::Attempt,
    classify::{AttemptInput, classify},
    context::DispatchContext,
    request::RequestCopy,
};
use crate::call::{Call, DecisionContext};

/// The first attempt, and how to hedge it.
pub(super) struct HedgedSend<'a> {
    pub(super) attempt: &'a mut Attempt,
    pub(super) pending: &'a mut PendingRequest,
    pub(super) timeouts: AttemptTimeouts,
    pub(super) copy: &'a RequestCopy,
    /// Time after which to make the second attempt.
    pub(super) after: Duration,
}

/// The result that is used, and the attempt that produced it.
enum Winner {
    First(SendResult),
    Second(SendResult),
}

/// Sends an attempt and, after the delay, a hedged attempt. Afterwards `call` and the borrowed attempt belong to the
/// result that is returned.
pub(super) async fn send<'c>(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'c, Arc<EndpointPool>>,
    hedged: HedgedSend<'_>,
) -> SendResult {
    let HedgedSend { attempt, pending, timeouts, copy, after } = hedged;
    let (second, result) = {
        let mut first = pin!(attempt.pool.send(pending, timeouts));
        tokio::select! {
            biased;
            result = &mut first => return result,
            () = sleep(after) => {}
        }
        let Some(second) = SecondAttempt::begin(dispatch, call, copy) else { return first.await };
        match second.race(dispatch, FirstInFlight { call, attempt, sending: first.as_mut() }).await {
            (Winner::First(result), _) => return result,
            (Winner::Second(result), second) => (second, result),
        }
    };
    // Ends the first attempt together with its call.
    drop(mem::replace(call, second.call));
    second.attempt.replace(attempt);
    *pending = second.pending;
    result
}

struct SecondAttempt<'c> {
    call: Call<'c, Arc<EndpointPool>>,
    attempt: Attempt,
    pending: PendingRequest,
}

struct FirstInFlight<'a, 'c, F> {
    call: &'a mut Call<'c, Arc<EndpointPool>>,
    attempt: &'a Attempt,
    sending: Pin<&'a mut F>,
}

impl<'c> SecondAttempt<'c> {
    /// Begins the same call at another endpoint, if there is one and the budget allows it.
    fn begin(
        dispatch: DispatchContext<'_>,
        call: &Call<'c, Arc<EndpointPool>>,
        copy: &RequestCopy,
    ) -> Option<Self> {
        let mesh = &dispatch.handle.mesh;
        let again = copy.to_request()?;
        let now = mesh.clock.now();
        let mut fork = call.fork();
        let at = DecisionContext { clock: mesh.clock, now, seed: mesh.seed() };
        let picked = fork.pick(call.snapshot(), dispatch.options, at).ok()?;
        let pool = picked.transport(&mesh.transport);
        if !fork.is_new_endpoint() {
            return None;
        }
        if !fork.charge_retry(now) {
            dispatch.handle.count(|counters| &counters.retry_budget_exhausted);
            return None;
        }
        dispatch.trace_attempt(&fork, &pool, &picked);
        let attempt = Attempt::begin_hedge(dispatch.handle, pool, now);
        let request = Request { left: fork.server_deadline(now), ..again };
        let mut pending = Some(request);
        dispatch.write_traceparent(&mut pending);
        Some(Self { call: fork, attempt, pending })
    }

    /// Sends the hedged attempt. Returns the response that arrives first. If one attempt fails, returns the result of
    /// the other.
    async fn race(
        mut self,
        dispatch: DispatchContext<'_>,
        mut first: FirstInFlight<'_, '_, impl Future<Output = SendResult>>,
    ) -> (Winner, Self) {
        let timeouts = self.attempt.timeouts(&dispatch.handle.mesh, &self.call);
        let winner = {
            let mut second = pin!(self.attempt.pool.send(&mut self.pending, timeouts));
            tokio::select! {
                biased;
                result = &mut first.sending => match result.is_err() {
                    false => Winner::First(result),
                    true => {
                        end_failed(dispatch, first.call, first.attempt, result);
                        Winner::Second(second.await)
                    }
                },
                result = &mut second => match result.is_err() {
                    false => Winner::Second(result),
                    true => {
                        end_failed(dispatch, &mut self.call, &self.attempt, result);
                        Winner::First(first.sending.await)
                    }
                },
            }
        };
        (winner, self)
    }
}

/// Records the failure of one attempt while the other one is in flight.
fn end_failed(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    attempt: &Attempt,
    result: SendResult,
) {
    let input = AttemptInput { call, pool: &attempt.pool, unsent: false };
    let (outcome, response) = classify(dispatch, result, &input);
    dispatch.attempt_ended(call, attempt, &response);
    call.end(outcome);
}
