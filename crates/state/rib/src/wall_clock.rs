//! The wall clock, for records that others read.

use std::time::UNIX_EPOCH;

/// Milliseconds since 1970, for records that others read, the logs of writes, display, and to detect incarnations from the future.
#[allow(clippy::disallowed_methods, reason = "the one reading of the wall clock for records")]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
