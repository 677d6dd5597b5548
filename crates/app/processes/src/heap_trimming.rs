//! Returns memory to the system after a peak, in long-running processes.

use std::{fs, time::Duration};

use tokio::{task::spawn_blocking, time::sleep};

/// Interval between checks. Each check holds the allocator's locks for less than a millisecond.
const INTERVAL: Duration = Duration::from_secs(5);
/// Number of unused bytes kept for new allocations.
const SPARE: usize = 8 << 20;

/// Results of the last trim: the bytes that could not be returned, such as pages with a block in use, and the bytes
/// in use at that time.
#[derive(Debug, Default)]
struct LastTrim {
    unused: usize,
    used: usize,
}

impl LastTrim {
    /// Whether memory should be returned, given the numbers of unused and used bytes.
    fn is_due(&mut self, unused: usize, used: usize) -> bool {
        // A trim in the middle of a peak leaves pages that can be returned once the blocks in them are freed.
        if self.used.saturating_sub(used) > SPARE {
            *self = Self::default();
        }
        self.unused = self.unused.min(unused);
        unused > self.unused + SPARE + used / 4
    }
}

/// Trims the heap whenever the process has much more memory than it uses, until the runtime ends.
///
/// Connections that come and go leave small free blocks in every arena, and by itself glibc returns only blocks at the
/// end of an arena. Rejected: fewer arenas (`M_ARENA_MAX`), which also keep the peak, and make threads wait for each
/// other.
pub async fn trim_periodically() {
    let mut last = LastTrim::default();
    loop {
        sleep(INTERVAL).await;
        let Some((unused, used)) = memory() else { return };
        if last.is_due(unused, used) {
            // Fails only when the runtime stops.
            let _ = spawn_blocking(fairmesh_shared_memory::trim).await;
            let left = memory().unwrap_or_default();
            last = LastTrim { unused: left.0, used: left.1 };
            tracing::debug!(unused, left = left.0, "returned unused memory to the system");
        }
    }
}

/// Numbers of unused and used bytes in the process's memory.
fn memory() -> Option<(usize, usize)> {
    let used = fairmesh_shared_memory::used()?;
    Some((resident()?.saturating_sub(used), used))
}

/// Size of the resident anonymous memory in bytes (proc_pid_status(5)).
fn resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(kilobytes.trim().strip_suffix(" kB")?.parse::<usize>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn fragmented_heap_memory_is_trimmed_once() {
        let mut last = LastTrim::default();
        assert!(last.is_due(90 * MB, 100 * MB));
        last = LastTrim { unused: 60 * MB, used: 100 * MB };
        assert!(!last.is_due(60 * MB, 100 * MB) && !last.is_due(80 * MB, 98 * MB));
        assert!(last.is_due(100 * MB, 100 * MB), "it has grown");
    }

    #[test]
    fn heap_memory_is_trimmed_after_peak() {
        let mut last = LastTrim { unused: 60 * MB, used: 100 * MB };
        assert!(last.is_due(70 * MB, 40 * MB), "what was in use is freed");
    }
}
