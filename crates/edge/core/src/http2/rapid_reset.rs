use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Number of resets at which a connection is closed, if more than half of its requests were reset. Fewer resets are
/// ordinary cancellations. More resets make servers work at almost no cost for the client (CVE-2023-44487). The
/// HTTP/2 connection itself limits resets before a request is handled.
const MAX_RESETS: u32 = 256;

/// Maximum age of a request whose reset counts. Callers cancel older requests at their deadlines, and such a request
/// has occupied one of the client's streams for that time. An attack resets at once.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Counts the requests and resets of a connection.
#[derive(Debug, Default)]
pub(crate) struct RapidResetGuard {
    started: AtomicU32,
    reset: AtomicU32,
    tripped: CancellationToken,
}

/// A request without response headers so far. Dropping it within [`MAX_AGE`] counts as a reset.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    guard: Arc<RapidResetGuard>,
    began: Instant,
    responded: bool,
}

impl RapidResetGuard {
    /// Counts a request.
    pub(crate) fn start_request(self: &Arc<Self>) -> PendingRequest {
        self.started.fetch_add(1, Relaxed);
        PendingRequest { guard: Arc::clone(self), began: Instant::now(), responded: false }
    }

    /// Waits until the limit is exceeded.
    pub(crate) async fn tripped(&self) {
        self.tripped.cancelled().await;
    }
}

impl PendingRequest {
    pub(crate) fn responded(mut self) {
        self.responded = true;
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if self.responded || self.began.elapsed() >= MAX_AGE {
            return;
        }
        let reset = self.guard.reset.fetch_add(1, Relaxed) + 1;
        if reset >= MAX_RESETS && reset > self.guard.started.load(Relaxed) / 2 {
            self.guard.tripped.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(responded: u32, reset: u32) -> bool {
        let guard = Arc::<RapidResetGuard>::default();
        (0..responded).for_each(|_| guard.start_request().responded());
        (0..reset).for_each(|_| drop(guard.start_request()));
        guard.tripped.is_cancelled()
    }

    #[test]
    fn rapid_reset_guard_trips_when_most_of_many_requests_are_reset() {
        assert!(!after(0, MAX_RESETS - 1) && after(0, MAX_RESETS));
        assert!(!after(2 * MAX_RESETS, 2 * MAX_RESETS) && after(2 * MAX_RESETS, 2 * MAX_RESETS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn cancellations_after_max_age_do_not_count_as_rapid_resets() {
        let guard = Arc::<RapidResetGuard>::default();
        let requests: Vec<_> = (0..2 * MAX_RESETS).map(|_| guard.start_request()).collect();
        tokio::time::advance(MAX_AGE).await;
        drop(requests);
        assert!(!guard.tripped.is_cancelled());
        (0..=2 * MAX_RESETS).for_each(|_| drop(guard.start_request()));
        assert!(guard.tripped.is_cancelled());
    }
}
