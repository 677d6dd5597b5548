/// Schedules progress notifications (as in etcd), which send every watcher its revision even if nothing changed for
/// it. A notification is sent twice in the time in which the log of changes is fully replaced, so that idle watchers
/// can resume.
#[derive(Debug)]
pub(crate) struct ProgressSchedule {
    next: u64,
}

impl ProgressSchedule {
    /// Creates a schedule for a table with this many changes, whose log contains at most `max_log` changes.
    pub(crate) fn new((changes, max_log): (u64, usize)) -> Self {
        Self { next: changes + (max_log as u64 / 2).max(1) }
    }

    /// Whether a notification is due.
    pub(crate) fn due(&mut self, (changes, max_log): (u64, usize)) -> bool {
        let due = changes >= self.next;
        if due {
            *self = Self::new((changes, max_log));
        }
        due
    }
}
