//! How a proxy and its connections end: one deadline for all, and no request lost that could be answered.

use std::{sync::OnceLock, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// How long an HTTP/1.1 connection is kept for one more request. It can be told to go only with an answer: one that is
/// closed while it is idle may carry a request already, which would be lost.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// How long before the deadline streams are told to move, so that the word arrives.
const STREAM_DRAIN_LEAD: Duration = Duration::from_secs(1);

/// The end of a proxy: told once, with its deadline.
#[derive(Debug, Default)]
pub(crate) struct Shutdown {
    started: CancellationToken,
    idle_grace_over: CancellationToken,
    ends_at: OnceLock<Instant>,
}

impl Shutdown {
    /// Tells everybody to end within `drain`. Must be called within a tokio runtime.
    pub(crate) fn start(&self, drain: Duration) {
        self.ends_at.get_or_init(|| {
            let over = self.idle_grace_over.clone();
            // Half of the time at most, so that who asks last gets its answer.
            let grace = IDLE_GRACE.min(drain / 2);
            tokio::spawn(async move {
                sleep(grace).await;
                over.cancel();
            });
            Instant::now() + drain
        });
        self.started.cancel();
    }

    /// Fires when the proxy stops: nobody new is taken, and answers say that their connections end.
    pub(crate) fn started(&self) -> &CancellationToken {
        &self.started
    }

    /// Fires when connections that cannot be told to go, and on which nothing is under way, have been kept for long enough.
    pub(crate) fn idle_grace_over(&self) -> &CancellationToken {
        &self.idle_grace_over
    }

    /// Whether the proxy stops; without the lock that the token has.
    pub(crate) fn is_started(&self) -> bool {
        // It is set just before anybody is told.
        self.ends_at.get().is_some()
    }

    /// Whether [`quiet`](Self::quiet) has fired.
    pub(crate) fn is_idle_grace_over(&self) -> bool {
        self.is_started() && self.idle_grace_over.is_cancelled()
    }

    /// Waits until it is told; the deadline.
    pub(crate) async fn deadline(&self) -> Instant {
        self.started.cancelled().await;
        // It is set before anybody is told.
        self.ends_at.get().copied().unwrap_or_else(Instant::now)
    }

    /// When streams are told to move that have not ended by themselves: a second before the deadline, or a quarter of what is left.
    pub(crate) fn stream_drain_at(deadline: Instant) -> Instant {
        deadline - STREAM_DRAIN_LEAD.min(deadline.saturating_duration_since(Instant::now()) / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_deadline_applies_and_idle_grace_is_at_most_half_of_it() {
        let shutdown = Shutdown::default();
        assert!(!shutdown.is_started(), "nobody is told to go before");
        let began = Instant::now();
        shutdown.start(Duration::from_secs(4));
        sleep(Duration::from_secs(1)).await;
        shutdown.start(Duration::from_secs(4));
        let deadline = shutdown.deadline().await;
        assert_eq!(deadline - began, Duration::from_secs(4), "the first word counts");
        assert_eq!(Shutdown::stream_drain_at(deadline) - began, Duration::from_millis(3_250));
        assert_eq!(
            Shutdown::stream_drain_at(began + Duration::from_secs(60)) - began,
            Duration::from_secs(59)
        );
        assert!(shutdown.is_started() && !shutdown.is_idle_grace_over());
        shutdown.idle_grace_over().cancelled().await;
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }
}
