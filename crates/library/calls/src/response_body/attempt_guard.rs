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

/// Time after which a response that has kept its reader waiting counts as a stream. Servers use the same time.
const STREAM_AFTER: Duration = Duration::from_secs(1);

/// Why a response is cut off.
pub(super) enum BodyTimeout {
    /// The deadline has passed.
    Deadline,
    /// No progress was made for this time.
    Idle(Duration),
}

/// The attempt that a response belongs to. The attempt counts as outstanding until this guard is dropped.
pub(crate) struct AttemptGuard {
    pool: Arc<EndpointPool>,
    clock: Clock,
    outcome: Outcome,
    deadline: Instant,
    has_deadline: bool,
    /// Maximum time without progress.
    idle_timeout: Duration,
    /// Time since which the reader has been waiting, if it is.
    waiting_since: Option<Instant>,
    /// Expires when the response becomes a stream, and when it times out. Allocated when the body first keeps its
    /// reader waiting, which most bodies never do.
    timer: Option<PooledTimer>,
    /// Time at which the response becomes a stream; `None` once it is one.
    stream_at: Option<Instant>,
    is_stream: bool,
    /// Whether a frame was delivered.
    is_started: bool,
    /// Whether the attempt has ended. The guard is then kept only for its properties.
    ended: bool,
    /// Number of attempts of the call. A small type, since bodies are moved.
    attempts: u16,
    /// Where the bytes of the body are counted for traffic reports.
    reported: Option<Arc<CallCounters>>,
    /// Whether the gRPC status is still to come and must be counted for traffic reports.
    awaits_status: bool,
}

impl AttemptGuard {
    /// Takes over a call's attempt in flight at this endpoint, together with its response.
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

    /// Like [`of`](Self::of), for a tunnel. A tunnel may be silent for any time, which is up to its users.
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

    /// Returns the timeout if a body that keeps its reader waiting must be cut off. `moved` is the time of the last
    /// progress of its request. After some time, the body counts as a stream, as on the server's side (Uber, assisted
    /// balancing). This needs a timer, since a silent body is never polled again.
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

    /// Records that a frame has arrived.
    #[inline]
    pub(super) fn record_progress(&mut self) {
        self.waiting_since = None;
        self.is_started = true;
    }

    /// Counts bytes of the body for traffic reports.
    #[inline]
    pub(super) fn record_bytes(&self, bytes: usize) {
        if let Some(counters) = &self.reported {
            counters.record_bytes(bytes as u64);
        }
    }

    /// Whether the deadline has passed. This also detects a reader that is slower than the server and so never waits.
    /// False before the first frame, which usually arrives with the headers. Most responses end with that frame and
    /// need no clock.
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        self.is_started && !self.ended && self.deadline <= Instant::now()
    }

    /// When the response is cut off; `None` for a call without a deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.has_deadline.then_some(self.deadline)
    }

    /// Counts the attempt as a stream from now on, since its duration is unbounded.
    pub(super) fn into_stream(mut self) -> Self {
        self.is_stream = self.pool.endpoint().mark_as_stream();
        self
    }

    /// The pool of the attempt's endpoint.
    pub(super) fn pool(&self) -> &EndpointPool {
        &self.pool
    }

    /// Number of attempts of the call.
    pub(super) fn attempts(&self) -> usize {
        self.attempts.into()
    }

    /// Records the load and status in the trailers of a gRPC response.
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

    /// Counts the gRPC status for traffic reports, once.
    pub(super) fn report_status(&mut self, is_ok: bool) {
        if let (true, Some(counters)) = (mem::take(&mut self.awaits_status), &self.reported) {
            counters.record_response(ResponseClass::of_grpc(is_ok));
        }
    }

    /// Whether the attempt is over.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the connection of a completely read response to the pool.
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
