//! The time limits of a call.

use std::time::Duration;

use fairmesh_model::{CallKind, Timeouts};

use super::{clock::nanos, state::Call};
use crate::discovery::{DEFAULT_READY_TIMEOUT, EndpointTransport};

/// Time that stands for no deadline, or for a wait limited only by the call's own deadline.
const NEVER: u64 = u64::MAX;
/// Maximum grace period after a deadline that was also sent to the server. It lets the server's own status arrive
/// first. At most a tenth of the call's time.
const GRACE: Duration = Duration::from_millis(50);

/// Time limits of a call, in nanoseconds or [`NEVER`].
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimeouts {
    /// The deadline, as a time on the clock.
    deadline: u64,
    /// Grace period after the deadline.
    grace: u64,
    /// Maximum time from the end of the request to the response headers.
    response_header: u64,
    /// Maximum time without progress in the middle of a body.
    idle: u64,
    /// Whether the response may be an event stream, which may stay silent for longer.
    may_be_events: bool,
}

/// Inputs that determine the timeouts of a call.
pub(super) struct TimeoutParams<'a> {
    pub(super) timeouts: &'a Timeouts,
    /// The shortest time limit for the whole call.
    pub(super) total: Option<Duration>,
    /// Start of the call in nanoseconds of the clock.
    pub(super) began: u64,
    /// Whether the status of the response is in its trailers.
    pub(super) grpc: bool,
    /// Whether the caller expects a stream.
    pub(super) is_stream: bool,
}

impl CallTimeouts {
    pub(super) const NONE: Self =
        Self { deadline: NEVER, grace: 0, response_header: NEVER, idle: NEVER, may_be_events: false };

    #[inline]
    pub(super) fn new(params: &TimeoutParams<'_>) -> Self {
        let TimeoutParams { timeouts, total, began, grpc, is_stream } = *params;
        let kind = match total {
            Some(_) => CallKind::Bounded,
            None if grpc || is_stream => CallKind::Stream,
            None => CallKind::Other,
        };
        let (deadline, grace) = match total.map(nanos) {
            Some(total) => (began.saturating_add(total), if grpc { nanos(GRACE).min(total / 10) } else { 0 }),
            None => (NEVER, 0),
        };
        Self {
            deadline,
            grace,
            response_header: timeouts.response_header_timeout(kind).map_or(NEVER, nanos),
            idle: timeouts.idle_timeout(kind).map_or(NEVER, nanos),
            may_be_events: kind == CallKind::Other && timeouts.idle.is_none(),
        }
    }
}

impl<T: EndpointTransport> Call<'_, T> {
    /// Records that the caller expects a stream, as gRPC callers do, even though the headers are not a gRPC call's.
    pub(crate) fn expect_stream(&mut self) {
        self.is_stream = true;
    }

    /// The deadline of the call, in nanoseconds of the clock; `u64::MAX` without a deadline.
    pub fn deadline(&self) -> u64 {
        self.timeouts.deadline
    }

    /// Whether the caller or the route set a deadline.
    pub fn has_deadline(&self) -> bool {
        self.timeouts.deadline != NEVER
    }

    /// When a response that has begun is cut off, in nanoseconds of the clock: at the deadline, plus a grace period if
    /// the deadline was also sent to the server.
    #[inline]
    pub fn ends(&self) -> u64 {
        self.timeouts.deadline.saturating_add(self.timeouts.grace)
    }

    /// Maximum time from the end of the request to the response headers.
    #[inline]
    pub fn response_header_timeout(&self) -> Duration {
        Duration::from_nanos(self.timeouts.response_header)
    }

    /// Maximum time without progress in the middle of the request or response.
    #[inline]
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_nanos(self.timeouts.idle)
    }

    /// Maximum time without progress in the middle of a response. `is_events` returns whether the response is an
    /// event stream; it is called only if that matters.
    #[inline]
    pub fn response_idle_timeout(&self, is_events: impl FnOnce() -> bool) -> Duration {
        if self.timeouts.may_be_events && is_events() { Timeouts::STREAM } else { self.idle_timeout() }
    }

    /// The time left; without a deadline, longer than any wait.
    pub fn left(&self, now: u64) -> Duration {
        Duration::from_nanos(self.timeouts.deadline.saturating_sub(now))
    }

    /// The time left for steps before the request, such as connecting.
    #[inline]
    pub fn left_before_request(&self, now: u64) -> Duration {
        if self.has_deadline() { self.left(now) } else { DEFAULT_READY_TIMEOUT }
    }

    /// When an attempt that begins now must have its response headers, in nanoseconds of the clock.
    #[inline]
    pub fn attempt_ends(&self, now: u64) -> u64 {
        let longest = self.actions.as_ref().and_then(|actions| actions.attempt_timeout());
        longest.map_or(self.ends(), |longest| self.ends().min(now.saturating_add(nanos(longest))))
    }

    /// Deadline to send to a server, as time left: the call's deadline, or the maximum that the route sets for
    /// servers.
    #[inline]
    pub fn server_deadline(&self, now: u64) -> Option<Duration> {
        let left = self.has_deadline().then(|| self.left(now));
        shorter(left, self.actions.as_ref().and_then(|actions| actions.server_timeout()))
    }
}

#[inline]
pub(super) fn shorter(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.map_or(other, |one| Some(other.map_or(one, |other| one.min(other))))
}
