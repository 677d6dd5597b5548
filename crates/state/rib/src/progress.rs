/// When to send every watcher its revision although nothing changed for it (etcd: progress notification). This
/// happens twice while the log of changes is replaced, so that idle watchers can resume.
#[derive(Debug)]
pub(crate) struct ProgressSchedule {
    next: u64,
}

impl ProgressSchedule {
    /// For a table with this many changes, whose log contains at most `max_log`.
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
