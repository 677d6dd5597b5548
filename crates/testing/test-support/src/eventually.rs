use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Maximum time for a condition to become true. Long, because it only decides when a broken test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between checks of a condition.
const INTERVAL: Duration = Duration::from_millis(5);
/// Interval between checks that may start a process or a thread.
const BLOCKING_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold within [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    eventually_async(what, async || holds()).await;
}

/// As [`eventually`], for an async condition.
///
/// # Panics
/// If it does not hold within [`PATIENCE`].
pub async fn eventually_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds().await {
            sleep(INTERVAL).await;
        }
    });
    assert!(waited.await.is_ok(), "not within {PATIENCE:?}: {what}");
}

/// As [`eventually`], blocking the thread.
///
/// # Panics
/// If it does not hold within [`PATIENCE`].
#[track_caller]
pub fn eventually_blocking(what: &str, holds: impl FnMut() -> bool) {
    assert!(eventually_within(PATIENCE, holds), "not within {PATIENCE:?}: {what}");
}

/// Waits until a condition holds, blocking the thread. Returns false if it does not hold within `limit`.
pub fn eventually_within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(BLOCKING_INTERVAL);
    }
    true
}
