//! Waits of an attempt: for its request to be sent, and for the headers of the response.

use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{error::SendError, timer::DeadlineTimer};

/// Time limits for the steps of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptTimeouts {
    /// When the attempt began.
    pub begun: Instant,
    /// Latest time at which there must be a connection.
    pub connected_by: Instant,
    /// Latest time for the response headers, whatever delays them.
    pub until: Instant,
    /// Maximum time from the end of the request to the response headers.
    pub response_header: Duration,
    /// Maximum time without progress while the request is sent.
    pub idle: Duration,
}

/// Progress of a request that is being sent. A changed value means progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendProgress {
    /// Number of pieces taken from the request body.
    pub pieces: u64,
    /// Number of bytes of these pieces that the socket has not accepted. At 0, the caller must provide more.
    pub unsent: usize,
}

/// An idle timeout, named after the silent party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleTimeout {
    /// The server did not respond after it was sent the whole request.
    Response(Duration),
    /// The server stopped reading the request.
    Upload(Duration),
    /// The caller stopped sending its request.
    Caller(Duration),
}

/// Limits the wait for the headers of a response, while the request is sent and afterwards.
///
/// The clock is read only after progress that is followed by another wait, and the timer is reset only if it would
/// expire too late. Almost every request is sent with one write, and needs neither.
#[derive(Debug)]
pub(super) struct ResponseWait {
    timeouts: AttemptTimeouts,
    since: Instant,
    seen: Option<SendProgress>,
    has_waited: bool,
}

impl ResponseWait {
    pub(super) fn new(timeouts: AttemptTimeouts) -> Self {
        Self { timeouts, since: timeouts.begun, seen: None, has_waited: false }
    }

    /// Returns the polled result, or the timeout if the result is pending and late. `progress` is `Some` while the
    /// request is being sent.
    pub(super) fn bound<T>(
        &mut self,
        polled: Poll<Result<T, SendError>>,
        progress: Option<SendProgress>,
        timer: &mut DeadlineTimer,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, SendError>> {
        if polled.is_ready() {
            return polled;
        }
        if mem::replace(&mut self.has_waited, true) && self.seen != progress {
            self.since = Instant::now();
        }
        self.seen = progress;
        let AttemptTimeouts { until, response_header, idle, .. } = self.timeouts;
        let idle_timeout = match progress {
            None => IdleTimeout::Response(response_header),
            Some(SendProgress { unsent: 0, .. }) => IdleTimeout::Caller(idle),
            Some(_) => IdleTimeout::Upload(idle),
        };
        let expires = self.since + idle_timeout.duration();
        if !timer.has_expired(expires.min(until), context) {
            return Poll::Pending;
        }
        Poll::Ready(Err(if until <= expires { SendError::TimedOut } else { SendError::Idle(idle_timeout) }))
    }
}

impl IdleTimeout {
    /// The maximum time without progress.
    pub fn duration(self) -> Duration {
        match self {
            Self::Response(duration) | Self::Upload(duration) | Self::Caller(duration) => duration,
        }
    }
}

/// Time of the last progress of a request whose rest a task sends while the response is read.
#[derive(Debug)]
pub(super) struct UploadActivity {
    begun: Instant,
    moved_ms: AtomicU64,
}

impl UploadActivity {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), moved_ms: AtomicU64::new(0) }
    }

    pub(super) fn record(&self) {
        self.moved_ms.store(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn last(&self) -> Instant {
        self.begun + Duration::from_millis(self.moved_ms.load(Relaxed))
    }
}

#[cfg(test)]
impl AttemptTimeouts {
    /// Returns timeouts that limit only the total time.
    pub fn until(until: Instant) -> Self {
        let never = Duration::from_secs(1 << 30);
        Self { begun: Instant::now(), connected_by: until, until, response_header: never, idle: never }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Waits for the timeout. `progress` maps elapsed seconds to the progress of the request.
    async fn late(
        timeouts: AttemptTimeouts,
        progress: impl Fn(u128) -> Option<SendProgress>,
    ) -> (SendError, u128) {
        let (mut wait, mut timer) = (ResponseWait::new(timeouts), DeadlineTimer::default());
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        let ended = poll_fn(|context| {
            while ticks.poll_tick(context).is_ready() {}
            let progress = progress(timeouts.begun.elapsed().as_secs().into());
            wait.bound(Poll::<Result<(), _>>::Pending, progress, &mut timer, context)
        });
        (ended.await.unwrap_err(), timeouts.begun.elapsed().as_secs().into())
    }

    fn timeouts(until: u64) -> AttemptTimeouts {
        let begun = Instant::now();
        let (response_header, idle) = (Duration::from_secs(90), Duration::from_secs(15));
        let until = begun + Duration::from_secs(until);
        AttemptTimeouts { begun, connected_by: until, until, response_header, idle }
    }

    #[tokio::test(start_paused = true)]
    async fn progressing_upload_has_no_timeout_and_header_timeout_starts_at_its_end() {
        // One piece every ten seconds, for ten minutes.
        let upload = |now: u128| (now < 600).then_some(SendProgress { pieces: (now / 10) as u64, unsent: 0 });
        let (error, after) = late(timeouts(1 << 30), upload).await;
        assert!(matches!(error, SendError::Idle(IdleTimeout::Response(_))), "{error:?}");
        assert_eq!(after, 690);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_timeout_error_names_silent_party() {
        let of = |unsent| move |now: u128| Some(SendProgress { pieces: now.min(20) as u64, unsent });
        let (error, after) = late(timeouts(1 << 30), of(0)).await;
        assert!(matches!(error, SendError::Idle(IdleTimeout::Caller(_))), "{error:?}");
        assert_eq!(after, 35);
        let (error, _) = late(timeouts(1 << 30), of(7)).await;
        assert!(matches!(error, SendError::Idle(IdleTimeout::Upload(_))), "{error:?}");
        let (error, after) = late(timeouts(30), of(7)).await;
        assert!(matches!(error, SendError::TimedOut), "{error:?}");
        assert_eq!(after, 30, "the deadline of the call passes first");
    }
}
