//! Processes of this machine, for messages about them.

use std::{fmt, fs};

/// A process.
pub(crate) struct ProcessStat {
    pub(crate) pid: u32,
    name: String,
    pub(crate) is_suspended: bool,
}

impl ProcessStat {
    /// The process with this id; `None` if it is gone, or not of this process's namespace.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::read(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads `/proc/PID/stat` (proc_pid_stat(5)): the name is in parentheses, and may contain some.
    fn read(pid: u32, stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let is_suspended = matches!(rest.trim_start().chars().next(), Some('T' | 't'));
        Some(Self { pid, name: name.to_owned(), is_suspended })
    }
}

impl fmt::Display for ProcessStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({:?})", self.pid, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_read_after_its_name() {
        let stopped = ProcessStat::read(7, "7 (a) R (b) T 1 7 7 0").unwrap();
        assert_eq!((stopped.to_string().as_str(), stopped.is_suspended), ("process 7 (\"a) R (b\")", true));
        assert!(!ProcessStat::read(7, "7 (fairmesh) S 1 7").unwrap().is_suspended);
        assert!(ProcessStat::read(7, "").is_none());
    }
}
