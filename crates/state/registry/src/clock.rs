use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970: for the times of history entries, and to detect incarnations from the future.
#[allow(clippy::disallowed_methods, reason = "the one reading of the wall clock in this crate")]
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
