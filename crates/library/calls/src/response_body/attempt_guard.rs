use std::{mem, sync::Arc, task::Context, time::Duration};

use fairmesh_connections::{EndpointPool, EndpointResponse, H1Body, PooledTimer};
use fairmesh_headers::{GRPC_STATUS, is_event_stream, is_server_error};
use fairmesh_model::ResponseClass;
use fairmesh_router::Outcome;
use fairmesh_signals::CallCounters;
use http::HeaderMap;
use tokio::time::Instant;

use crate::{
    call::{Call, Clock},
    load_report::LoadRecorder,
};

/// A response that kept its reader waiting and continues after this time is a stream; servers apply the same bound.
const STREAM_AFTER: Duration = Duration::from_secs(1);

/// Why a response is cut off.
pub(super) enum BodyTimeout {
    /// The deadline has passed.
    Deadline,
    /// Nothing moved for this long.
    Idle(Duration),
}

/// The attempt of a response: outstanding until this is dropped.
pub(crate) struct AttemptGuard {
    pool: Arc<EndpointPool>,
    clock: Clock,
    outcome: Outcome,
    deadline: Instant,
    has_deadline: bool,
    /// How long nothing may move.
    idle_timeout: Duration,
    /// Since when the reader waits, while it does.
    waiting_since: Option<Instant>,
    /// Expires when the response becomes a stream, and when it times out. Taken when the body first keeps its reader
    /// waiting, which most never do.
    timer: Option<PooledTimer>,
    /// When the response becomes a stream, until it does.
    stream_at: Option<Instant>,
    is_stream: bool,
    /// Whether a frame was delivered.
    is_started: bool,
    /// Whether the attempt is over, and this is kept for its properties.
    ended: bool,
    /// Of the call; small, since bodies are moved.
    attempts: u16,
    /// Where the bytes of the body are counted for reports.
    reported: Option<Arc<CallCounters>>,
    /// Whether the gRPC status, which is yet to come, is counted there too.
    awaits_status: bool,
}

impl AttemptGuard {
    /// Takes over the attempt that a call has in flight at this endpoint, with this response.
    pub(crate) fn of(
        call: &mut Call<'_, Arc<EndpointPool>>,
        pool: Arc<EndpointPool>,
        response: &EndpointResponse,
        clock: Clock,
    ) -> Option<Self> {
        let idle_timeout = call.response_idle_timeout(|| is_event_stream(response.headers()));
        let awaits_status = call.report_head(response.status(), response.headers());
        let mut guard = Self::new(call, pool, idle_timeout, clock)?;
        guard.awaits_status = awaits_status;
        Some(guard)
    }

    /// The same for a tunnel, whose silence is its users' own.
    pub(crate) fn of_tunnel(
        call: &mut Call<'_, Arc<EndpointPool>>,
        pool: Arc<EndpointPool>,
        clock: Clock,
    ) -> Option<Self> {
        call.report_response(ResponseClass::Success);
        Self::new(call, pool, Duration::from_nanos(u64::MAX), clock)
    }

    fn new(
        call: &mut Call<'_, Arc<EndpointPool>>,
        pool: Arc<EndpointPool>,
        idle_timeout: Duration,
        clock: Clock,
    ) -> Option<Self> {
        let (outcome, reported) = call.hand_over()?;
        let attempts = u16::try_from(call.attempts()).unwrap_or(u16::MAX);
        Some(Self {
            pool,
            clock,
            outcome,
            deadline: clock.instant(call.ends()),
            has_deadline: call.ends() != u64::MAX,
            idle_timeout,
            waiting_since: None,
            timer: None,
            stream_at: None,
            is_stream: false,
            is_started: false,
            ended: false,
            attempts,
            reported,
            awaits_status: false,
        })
    }

    /// Whether a body that keeps its reader waiting is cut off; `moved`: when the rest of its request last did. After a
    /// while it counts as a stream, as on the server's side (Uber, assisted balancing); by a timer, since a silent one
    /// is never polled again.
    pub(super) fn poll_timeout(
        &mut self,
        moved: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Option<BodyTimeout> {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        if self.timer.is_none() {
            self.stream_at = Some(since + STREAM_AFTER);
        }
        let timer = self.timer.get_or_insert_with(PooledTimer::take);
        let idle_at = moved.map_or(since, |moved| moved.max(since)) + self.idle_timeout;
        let due = idle_at.min(self.deadline);
        if let Some(at) = self.stream_at.filter(|at| *at < due) {
            if !timer.has_expired(at, context) {
                return None;
            }
            self.stream_at = None;
            self.is_stream = self.pool.endpoint().mark_as_stream();
        }
        timer.has_expired(due, context).then(|| match self.deadline <= idle_at {
            true => BodyTimeout::Deadline,
            false => BodyTimeout::Idle(self.idle_timeout),
        })
    }

    /// A frame has arrived.
    #[inline]
    pub(super) fn record_progress(&mut self) {
        self.waiting_since = None;
        self.is_started = true;
    }

    /// Counts bytes of the body for reports.
    #[inline]
    pub(super) fn record_bytes(&self, bytes: usize) {
        if let Some(counters) = &self.reported {
            counters.record_bytes(bytes as u64);
        }
    }

    /// Whether the deadline has passed, also where the reader is slower than the server and never waits for it. Not
    /// before the first frame, which usually arrives with the headers: most responses end with it, and need no clock.
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        self.is_started && !self.ended && self.deadline <= Instant::now()
    }

    /// When the response is cut off; `None` of a call without a deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.has_deadline.then_some(self.deadline)
    }

    /// Counts as a stream from now on, since its duration is unbounded.
    pub(super) fn into_stream(mut self) -> Self {
        self.is_stream = self.pool.endpoint().mark_as_stream();
        self
    }

    /// The endpoint that it goes to.
    pub(super) fn pool(&self) -> &EndpointPool {
        &self.pool
    }

    /// The number of attempts of the call.
    pub(super) fn attempts(&self) -> usize {
        self.attempts.into()
    }

    /// Records the load and the status in the trailers of a gRPC response.
    pub(super) fn record_trailers(&mut self, trailers: &HeaderMap) {
        let status = trailers.get(&GRPC_STATUS);
        let failed = status.is_some_and(|status| is_server_error(status.as_bytes()));
        self.report_status(status.is_some_and(|status| status == "0"));
        LoadRecorder { pool: &self.pool, clock: self.clock }.record_trailers(trailers, !failed);
        if failed {
            self.set_failed();
        }
    }

    pub(super) fn set_failed(&mut self) {
        self.outcome = Outcome::Failed;
        self.report_status(false);
    }

    /// Counts the gRPC status for reports, once.
    pub(super) fn report_status(&mut self, is_ok: bool) {
        if let (true, Some(counters)) = (mem::take(&mut self.awaits_status), &self.reported) {
            counters.record_response(ResponseClass::of_grpc(is_ok));
        }
    }

    /// Whether the attempt is over.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Keeps the connection of a response that was read to its end.
    pub(super) fn keep_connection(&self, body: &mut H1Body) {
        self.pool.keep(body);
    }

    /// Counts the end of the attempt, once.
    pub(super) fn end(&mut self) {
        if mem::replace(&mut self.ended, true) {
            return;
        }
        let now = if self.outcome == Outcome::Unknown { 0 } else { self.clock.now() };
        match self.is_stream {
            true => self.pool.endpoint().finish_stream(self.outcome, now),
            false => self.pool.endpoint().finish(self.outcome, now),
        }
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.end();
    }
}
