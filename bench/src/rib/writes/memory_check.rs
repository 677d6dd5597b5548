//! Refuses to start a benchmark for which the machine has too little memory.

use crate::process_usage::kilobyte_field;

/// Fails, with a remedy, when fewer than `bytes` of memory are available.
pub(super) fn require_available(bytes: u64) -> Result<(), String> {
    let available = kilobyte_field("/proc/meminfo", "MemAvailable:")
        .ok_or("/proc/meminfo does not say how much memory is available")?;
    if available >= bytes {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    Err(format!(
        "this takes {:.1} GB of memory, since a control plane holds all records there, and {:.1} GB are available: end other \
         programs, or try --quick, which takes a small part of it",
        gb(bytes),
        gb(available),
    ))
}
