//! How long an attempt waits: for its request to be taken, and for the headers of the response.

use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{Alarm, SendError};

/// Until when the steps of an attempt may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// When it began.
    pub(crate) begun: Instant,
    /// To have a connection.
    pub(crate) connected_by: Instant,
    /// To have the response headers, whatever it waits for.
    pub(crate) until: Instant,
    /// From the end of the request to the response headers.
    pub(crate) response_header: Duration,
    /// For which nothing may move while the request is sent.
    pub(crate) idle: Duration,
}

/// How far a request has come that is being sent: another value means that something moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sending {
    /// Pieces that were taken of its body.
    pub(crate) pieces: u64,
    /// Bytes of them that the server's side has not taken; at 0 the caller has to go on.
    pub(crate) unsent: usize,
}

/// What was silent for longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The server, which was sent the whole request.
    Response(Duration),
    /// The server, which takes no more of the request.
    Upload(Duration),
    /// The caller, whose request has not ended.
    Caller(Duration),
}

/// A request that is sent, or was, and waits for the headers of its response.
///
/// The clock is read only where something moved before it had to wait again, and the timer is set anew only where it would ring too
/// late: nearly every request is sent with one write, and needs neither.
#[derive(Debug)]
pub(super) struct Wait {
    times: Times,
    since: Instant,
    seen: Option<Sending>,
    has_waited: bool,
}

impl Wait {
    pub(super) fn new(times: Times) -> Self {
        Self { times, since: times.begun, seen: None, has_waited: false }
    }

    /// What was polled, unless it is still waited for and it is late; `sending` while the request is.
    pub(super) fn bound<T>(
        &mut self,
        polled: Poll<Result<T, SendError>>,
        sending: Option<Sending>,
        alarm: &mut Alarm,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, SendError>> {
        if polled.is_ready() {
            return polled;
        }
        if mem::replace(&mut self.has_waited, true) && self.seen != sending {
            self.since = Instant::now();
        }
        self.seen = sending;
        let Times { until, response_header, idle, .. } = self.times;
        let silence = match sending {
            None => Silence::Response(response_header),
            Some(Sending { unsent: 0, .. }) => Silence::Caller(idle),
            Some(_) => Silence::Upload(idle),
        };
        let silent = self.since + silence.duration();
        if !alarm.has_rung(silent.min(until), context) {
            return Poll::Pending;
        }
        Poll::Ready(Err(if until <= silent { SendError::OutOfTime } else { SendError::Silent(silence) }))
    }
}

impl Silence {
    pub(crate) fn duration(self) -> Duration {
        match self {
            Self::Response(duration) | Self::Upload(duration) | Self::Caller(duration) => duration,
        }
    }
}

/// When the rest of a request last moved, which a task sends while the response is read.
#[derive(Debug)]
pub(super) struct Movement {
    begun: Instant,
    moved_ms: AtomicU64,
}

impl Movement {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), moved_ms: AtomicU64::new(0) }
    }

    pub(super) fn moved(&self) {
        self.moved_ms.store(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn last(&self) -> Instant {
        self.begun + Duration::from_millis(self.moved_ms.load(Relaxed))
    }
}

#[cfg(test)]
impl Times {
    /// Bounded by this alone.
    pub(crate) fn until(until: Instant) -> Self {
        let never = Duration::from_secs(1 << 30);
        Self { begun: Instant::now(), connected_by: until, until, response_header: never, idle: never }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Waits until it is late; `sending` says at which time the request is how far.
    async fn late(times: Times, sending: impl Fn(u128) -> Option<Sending>) -> (SendError, u128) {
        let (mut wait, mut alarm) = (Wait::new(times), Alarm::default());
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        let ended = poll_fn(|context| {
            while ticks.poll_tick(context).is_ready() {}
            let sending = sending(times.begun.elapsed().as_secs().into());
            wait.bound(Poll::<Result<(), _>>::Pending, sending, &mut alarm, context)
        });
        (ended.await.unwrap_err(), times.begun.elapsed().as_secs().into())
    }

    fn times(until: u64) -> Times {
        let begun = Instant::now();
        let (response_header, idle) = (Duration::from_secs(90), Duration::from_secs(15));
        let until = begun + Duration::from_secs(until);
        Times { begun, connected_by: until, until, response_header, idle }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_moves_may_take_any_time_and_headers_are_waited_for_from_its_end() {
        // A piece each ten seconds, for ten minutes.
        let upload = |now: u128| (now < 600).then_some(Sending { pieces: (now / 10) as u64, unsent: 0 });
        let (error, after) = late(times(1 << 30), upload).await;
        assert!(matches!(error, SendError::Silent(Silence::Response(_))), "{error:?}");
        assert_eq!(after, 690);
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_is_silent_is_named() {
        let of = |unsent| move |now: u128| Some(Sending { pieces: now.min(20) as u64, unsent });
        let (error, after) = late(times(1 << 30), of(0)).await;
        assert!(matches!(error, SendError::Silent(Silence::Caller(_))), "{error:?}");
        assert_eq!(after, 35);
        let (error, _) = late(times(1 << 30), of(7)).await;
        assert!(matches!(error, SendError::Silent(Silence::Upload(_))), "{error:?}");
        let (error, after) = late(times(30), of(7)).await;
        assert!(matches!(error, SendError::OutOfTime), "{error:?}");
        assert_eq!(after, 30, "the call's own time comes first");
    }
}
