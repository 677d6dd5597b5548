use std::fmt;

use crate::WatcherInfo;

/// A watcher that has not applied a revision, or a placeholder for unknown watchers. [`Display`](fmt::Display)
/// formats it for operators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BehindWatcher {
    /// Software and identity of the watcher.
    pub name: String,
    /// Revision that the watcher has applied; `None` if unknown.
    pub applied: Option<u64>,
    /// Whether the watcher has disconnected and may reconnect.
    pub is_disconnected: bool,
}

impl BehindWatcher {
    pub(super) fn new(watcher: &WatcherInfo, is_disconnected: bool) -> Self {
        let name = format!("{} ({})", watcher.software, watcher.identity);
        Self { name, applied: Some(watcher.applied), is_disconnected }
    }

    /// Returns the placeholder for watchers of a node that has just started.
    pub(super) fn unknown() -> Self {
        let name = "watchers from before the start, yet to reconnect".to_owned();
        Self { name, applied: None, is_disconnected: true }
    }
}

impl fmt::Display for BehindWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let Some(applied) = self.applied else { return Ok(()) };
        write!(f, " at {applied}{}", if self.is_disconnected { ", disconnected" } else { "" })
    }
}
