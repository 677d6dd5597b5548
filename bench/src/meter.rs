//! CPU time, in nanoseconds of user and system time.

use std::time::Duration;

/// What this process has used so far.
pub(crate) fn own_cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    // The kernel never reports a negative time.
    Duration::new(u64::try_from(used.tv_sec).unwrap_or(0), u32::try_from(used.tv_nsec).unwrap_or(0))
}
