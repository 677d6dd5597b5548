//! Returns memory to the system after a peak, in processes that run for long.

use std::{fs, time::Duration};

use tokio::{task::spawn_blocking, time::sleep};

/// Interval of checks. Each costs the allocator's locks for less than a millisecond.
const INTERVAL: Duration = Duration::from_secs(5);
/// Unused bytes that are kept for new allocations.
const SPARE: usize = 8 << 20;

/// Trims the heap whenever the process has much more memory than it uses, until the runtime ends.
///
/// Peers that come and go leave small free blocks in every arena, and glibc returns only those at the end of one by itself.
/// Fewer arenas (`M_ARENA_MAX`) were rejected: they keep the peak as well, and threads wait for each other.
pub(crate) async fn trim_periodically() {
    // What the last trim could not return, such as pages with a block in use.
    let mut fragmented = 0;
    loop {
        sleep(INTERVAL).await;
        let Some((unused, used)) = memory() else { return };
        fragmented = unused.min(fragmented);
        if unused > fragmented + SPARE + used / 4 {
            // Fails only when the runtime stops.
            let _ = spawn_blocking(fairmesh_shared_memory::trim).await;
            fragmented = memory().map_or(0, |(unused, _)| unused);
            tracing::debug!(unused, left = fragmented, "returned unused memory to the system");
        }
    }
}

/// Bytes of the process that are not used, and those that are.
fn memory() -> Option<(usize, usize)> {
    let used = fairmesh_shared_memory::used()?;
    Some((resident()?.saturating_sub(used), used))
}

/// Bytes of anonymous memory that the process has (proc_pid_status(5)).
fn resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(kilobytes.trim().strip_suffix(" kB")?.parse::<usize>().ok()? * 1024)
}
