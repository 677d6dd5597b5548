//! How a proxy and its connections end: one deadline for all, and no request lost that could be answered.

use std::{sync::OnceLock, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// How long an HTTP/1.1 connection is kept for one more request. It can be told to go only with an answer: one that is
/// closed while it is idle may carry a request already, which would be lost.
const GRACE: Duration = Duration::from_secs(5);

/// How long before the deadline streams are told to move, so that the word arrives.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The end of a proxy: told once, with its deadline.
#[derive(Debug, Default)]
pub(crate) struct Stopping {
    told: CancellationToken,
    quiet: CancellationToken,
    deadline: OnceLock<Instant>,
}

impl Stopping {
    /// Tells everybody to end within `drain`. Must be called within a tokio runtime.
    pub(crate) fn begin(&self, drain: Duration) {
        self.deadline.get_or_init(|| {
            let quiet = self.quiet.clone();
            // Half of the time at most, so that who asks last gets its answer.
            let grace = GRACE.min(drain / 2);
            tokio::spawn(async move {
                sleep(grace).await;
                quiet.cancel();
            });
            Instant::now() + drain
        });
        self.told.cancel();
    }

    /// Fires when the proxy stops: nobody new is taken, and answers say that their connections end.
    pub(crate) fn told(&self) -> &CancellationToken {
        &self.told
    }

    /// Fires when connections that cannot be told to go, and on which nothing is under way, have been kept for long enough.
    pub(crate) fn quiet(&self) -> &CancellationToken {
        &self.quiet
    }

    /// Whether the proxy stops; without the lock that the token has.
    pub(crate) fn is_told(&self) -> bool {
        // It is set just before anybody is told.
        self.deadline.get().is_some()
    }

    /// Whether [`quiet`](Self::quiet) has fired.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_told() && self.quiet.is_cancelled()
    }

    /// Waits until it is told; the deadline.
    pub(crate) async fn begun(&self) -> Instant {
        self.told.cancelled().await;
        // It is set before anybody is told.
        self.deadline.get().copied().unwrap_or_else(Instant::now)
    }

    /// When streams are told to move that have not ended by themselves: a second before the deadline, or a quarter of what is left.
    pub(crate) fn last_word(deadline: Instant) -> Instant {
        deadline - LAST_WORD.min(deadline.saturating_duration_since(Instant::now()) / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_have_one_deadline_and_who_may_still_ask_half_of_it_at_most() {
        let stopping = Stopping::default();
        assert!(!stopping.is_told(), "nobody is told to go before");
        let began = Instant::now();
        stopping.begin(Duration::from_secs(4));
        sleep(Duration::from_secs(1)).await;
        stopping.begin(Duration::from_secs(4));
        let deadline = stopping.begun().await;
        assert_eq!(deadline - began, Duration::from_secs(4), "the first word counts");
        assert_eq!(Stopping::last_word(deadline) - began, Duration::from_millis(3_250));
        assert_eq!(Stopping::last_word(began + Duration::from_secs(60)) - began, Duration::from_secs(59));
        assert!(stopping.is_told() && !stopping.is_quiet());
        stopping.quiet().cancelled().await;
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }
}
