//! CPU time (user and system) and memory.

use std::{fs, time::Duration};

/// CPU time of this process so far.
pub(crate) fn own_cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    // The kernel never reports a negative time.
    Duration::new(u64::try_from(used.tv_sec).unwrap_or(0), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// Resident memory of a process in bytes. `None` if it has ended.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    kilobyte_field(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// A field in kilobytes of a file below `/proc`, in bytes; `None` if the file or the field is absent.
pub(crate) fn kilobyte_field(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let field = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(field.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
