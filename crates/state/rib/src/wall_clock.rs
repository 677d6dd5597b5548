//! The wall clock, for timestamps that other processes read.

use std::time::UNIX_EPOCH;

/// Returns milliseconds since 1970. Used for records, write logs, display, and to detect incarnations from the
/// future.
#[allow(clippy::disallowed_methods, reason = "the one reading of the wall clock for records")]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
