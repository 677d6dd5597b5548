//! Graceful shutdown: all connections share one deadline, and no request that could be served is lost.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Time for which an idle HTTP/1.1 connection stays open for one more request. Only a response can announce the
/// connection's end. A request may already be on its way, and would be lost if the connection closed at once.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// Time before the deadline at which long-lived streams are ended, so that clients get the notice in time.
const STREAM_DRAIN_LEAD: Duration = Duration::from_secs(1);

/// The shutdown of a proxy, or of some of its connections: starts once and has one deadline.
#[derive(Debug, Default)]
pub struct Shutdown {
    started: CancellationToken,
    idle_grace_over: CancellationToken,
    ends_at: OnceLock<Instant>,
    /// The shutdown of all connections, if this one is of some of them.
    whole: Option<Arc<Shutdown>>,
}

impl Shutdown {
    /// A shutdown of some connections, which starts with that of all of them at the latest.
    pub fn of_some(whole: Arc<Self>) -> Self {
        Self {
            started: whole.started.child_token(),
            idle_grace_over: whole.idle_grace_over.child_token(),
            ends_at: OnceLock::new(),
            whole: Some(whole),
        }
    }

    /// The deadline; `None` before the start.
    fn ends_at(&self) -> Option<Instant> {
        let whole = self.whole.as_ref().and_then(|whole| whole.ends_at());
        self.ends_at.get().copied().into_iter().chain(whole).min()
    }

    /// Starts the shutdown with a deadline after `drain`. Must be called within a tokio runtime.
    pub fn start(&self, drain: Duration) {
        self.begin(Instant::now() + drain, Self::idle_grace(drain));
    }

    /// Time for which idle connections stay open in a shutdown that lasts `drain`: at most half of it, so that the
    /// last request can complete.
    pub fn idle_grace(drain: Duration) -> Duration {
        IDLE_GRACE.min(drain / 2)
    }

    /// Starts the shutdown with this deadline, and closes idle connections at once, because their clients already
    /// know that they must move. Must be called within a tokio runtime.
    pub fn start_without_grace(&self, deadline: Instant) {
        self.begin(deadline, Duration::ZERO);
    }

    fn begin(&self, deadline: Instant, idle_grace: Duration) {
        self.ends_at.get_or_init(|| {
            let over = self.idle_grace_over.clone();
            tokio::spawn(async move {
                sleep(idle_grace).await;
                over.cancel();
            });
            deadline
        });
        self.started.cancel();
    }

    /// Token that is cancelled when the shutdown starts. From then on no connection is accepted, and responses
    /// announce the end of their connections.
    pub fn started(&self) -> &CancellationToken {
        &self.started
    }

    /// Token that is cancelled once idle HTTP/1.1 connections, which cannot be notified, have stayed open long
    /// enough.
    pub fn idle_grace_over(&self) -> &CancellationToken {
        &self.idle_grace_over
    }

    /// Whether the shutdown has started. Does not take the token's lock.
    pub(crate) fn is_started(&self) -> bool {
        // Set just before the token is cancelled.
        self.ends_at().is_some()
    }

    /// Whether [`idle_grace_over`](Self::idle_grace_over) is cancelled.
    pub(crate) fn is_idle_grace_over(&self) -> bool {
        self.is_started() && self.idle_grace_over.is_cancelled()
    }

    /// Waits until the shutdown starts, and returns its deadline.
    pub(crate) async fn deadline(&self) -> Instant {
        self.started.cancelled().await;
        // Set before the token is cancelled.
        self.ends_at().unwrap_or_else(Instant::now)
    }

    /// Completes at the drain deadline. Before that, wakes the task at each step of the shutdown.
    pub async fn deadline_passed(&self) {
        let deadline = self.deadline().await;
        self.idle_grace_over.cancelled().await;
        sleep_until(deadline).await;
    }

    /// Time at which long-lived streams are ended: a second before the deadline, or after three quarters of the
    /// remaining time.
    pub(crate) fn stream_drain_at(deadline: Instant) -> Instant {
        deadline - STREAM_DRAIN_LEAD.min(deadline.saturating_duration_since(Instant::now()) / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn first_shutdown_deadline_applies_and_idle_grace_is_at_most_half() {
        let shutdown = Shutdown::default();
        assert!(!shutdown.is_started(), "not started");
        let began = Instant::now();
        shutdown.start(Duration::from_secs(4));
        sleep(Duration::from_secs(1)).await;
        shutdown.start(Duration::from_secs(4));
        let deadline = shutdown.deadline().await;
        assert_eq!(deadline - began, Duration::from_secs(4), "the first start counts");
        assert_eq!(Shutdown::stream_drain_at(deadline) - began, Duration::from_millis(3_250));
        assert_eq!(
            Shutdown::stream_drain_at(began + Duration::from_secs(60)) - began,
            Duration::from_secs(59)
        );
        assert!(shutdown.is_started() && !shutdown.is_idle_grace_over());
        shutdown.idle_grace_over().cancelled().await;
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn partial_shutdown_leaves_other_connections_until_full_shutdown() {
        let whole = Arc::<Shutdown>::default();
        let [some, others] = [(); 2].map(|()| Shutdown::of_some(Arc::clone(&whole)));
        let began = Instant::now();
        some.start(Duration::from_secs(4));
        assert_eq!(some.deadline().await - began, Duration::from_secs(4));
        some.idle_grace_over().cancelled().await;
        assert!(!whole.is_started() && !others.is_started());
        assert!(!others.started().is_cancelled() && !others.is_idle_grace_over());
        whole.start(Duration::from_secs(8));
        assert_eq!(others.deadline().await - began, Duration::from_secs(10));
        others.deadline_passed().await;
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_without_grace_period_ends_idle_grace_at_once() {
        let (shutdown, began) = (Shutdown::default(), Instant::now());
        shutdown.start_without_grace(began + Duration::from_secs(4));
        shutdown.idle_grace_over().cancelled().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        shutdown.deadline_passed().await;
        assert_eq!(began.elapsed(), Duration::from_secs(4));
    }
}
