//! Processes at sockets of this machine.

use std::{fmt, fs, os::unix::net::UnixStream, path::Path};

use rustix::net::sockopt::socket_peercred;

/// A process that listens at a socket.
pub(super) struct Process {
    pub(super) pid: i32,
    name: String,
    pub(super) is_suspended: bool,
}

impl Process {
    /// The process that listens at this socket; `None` if it cannot be learned.
    pub(super) fn listening_at(path: &Path) -> Option<Self> {
        // The kernel accepts for a process that is suspended.
        let stream = UnixStream::connect(path).ok()?;
        let pid = socket_peercred(&stream).ok()?.pid.as_raw_nonzero().get();
        Self::read(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads `/proc/PID/stat` (proc_pid_stat(5)): the name is in parentheses, and may contain some.
    fn read(pid: i32, stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let is_suspended = matches!(rest.trim_start().chars().next(), Some('T' | 't'));
        Some(Self { pid, name: name.to_owned(), is_suspended })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({:?})", self.pid, self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_state_of_a_process_is_read_after_its_name() {
        let stopped = Process::read(7, "7 (a) R (b) T 1 7 7 0").unwrap();
        assert_eq!((stopped.to_string().as_str(), stopped.is_suspended), ("process 7 (\"a) R (b\")", true));
        assert!(!Process::read(7, "7 (fairmesh) S 1 7").unwrap().is_suspended);
        assert!(Process::read(7, "").is_none());
    }

    #[test]
    fn the_listener_of_a_socket_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        assert!(Process::listening_at(&path).is_none());
        let _listener = UnixListener::bind(&path).unwrap();
        let own = Process::listening_at(&path).unwrap();
        assert_eq!(u32::try_from(own.pid), Ok(std::process::id()));
        assert!(!own.is_suspended);
    }
}
