use std::fmt;

use crate::WatcherInfo;

/// A watcher that has not applied a revision, or some of which nothing is known; its [`Display`](fmt::Display) is for operators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BehindWatcher {
    /// Its software and its identity.
    pub name: String,
    /// The revision that it has applied; `None` of those of which that is not known.
    pub applied: Option<u64>,
    /// Whether it has disconnected, and may connect again.
    pub is_disconnected: bool,
}

impl BehindWatcher {
    pub(super) fn new(watcher: &WatcherInfo, is_disconnected: bool) -> Self {
        let name = format!("{} ({})", watcher.software, watcher.identity);
        Self { name, applied: Some(watcher.applied), is_disconnected }
    }

    /// Those of a node that has just started.
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
