//! Processes of this machine, for messages about them.

use std::{fmt, fs, path::Path};

use tokio::net::UnixStream;

/// A process.
#[derive(Debug)]
pub struct ProcessStat {
    /// Process id in the namespace of this process.
    pub pid: u32,
    name: String,
    /// Whether a signal or a debugger has stopped it.
    pub is_suspended: bool,
}

impl ProcessStat {
    /// The process with this id; `None` if it has ended or is outside this process's namespace.
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The process that listens at this socket; `None` if unknown.
    pub async fn listening_at(path: &Path) -> Option<Self> {
        // The kernel accepts connections for a suspended process as long as its backlog has room. This does not wait
        // for room.
        let stream = UnixStream::connect(path).await.ok()?;
        // 0 is a process of another namespace.
        let pid = u32::try_from(stream.peer_cred().ok()?.pid()?).ok().filter(|pid| *pid > 0)?;
        Self::of(pid)
    }

    /// The command that shows the log of the process: that of its systemd unit, or of the file to which its standard error
    /// goes. `None` if neither is known.
    pub fn log_command(&self) -> Option<String> {
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        let file = || {
            let file = fs::read_link(format!("/proc/{}/fd/2", self.pid)).ok()?;
            file.is_file().then(|| format!("tail {}", file.display()))
        };
        journal_command(&cgroup).or_else(file)
    }

    /// Parses `/proc/PID/stat` (proc_pid_stat(5)): the name is in parentheses, and may itself contain parentheses.
    fn read(pid: u32, stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let is_suspended = matches!(rest.trim_start().chars().next(), Some('T' | 't'));
        Some(Self { pid, name: name.to_owned(), is_suspended })
    }
}

/// The command for the journal of the systemd unit in the text of `/proc/PID/cgroup`.
fn journal_command(cgroup: &str) -> Option<String> {
    let path = cgroup
        .lines()
        .find_map(|line| line.strip_prefix("0::").or_else(|| line.split(":name=systemd:").nth(1)))?;
    let unit = path.rsplit('/').find(|part| part.ends_with(".service"))?;
    let of_user = path.contains("/user@") && !unit.starts_with("user@");
    Some(format!("journalctl {}-u {unit}", if of_user { "--user " } else { "" }))
}

impl fmt::Display for ProcessStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({:?})", self.pid, self.name)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[test]
    fn log_of_systemd_unit_is_named_by_its_command() {
        let command = |cgroup: &str| journal_command(cgroup).unwrap_or_default();
        assert_eq!(
            command("0::/system.slice/fairmesh-agent.service\n"),
            "journalctl -u fairmesh-agent.service"
        );
        assert_eq!(
            command("3:cpu:/x\n1:name=systemd:/system.slice/mesh.service\n"),
            "journalctl -u mesh.service"
        );
        let user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/agent.service\n";
        assert_eq!(command(user), "journalctl --user -u agent.service");
        assert_eq!(command("0::/user.slice/user-0.slice/session-3.scope\n"), "");
    }

    #[test]
    fn process_state_is_parsed_after_process_name() {
        let stopped = ProcessStat::read(7, "7 (a) R (b) T 1 7 7 0").unwrap();
        assert_eq!((stopped.to_string().as_str(), stopped.is_suspended), ("process 7 (\"a) R (b\")", true));
        assert!(!ProcessStat::read(7, "7 (fairmesh) S 1 7").unwrap().is_suspended);
        assert!(ProcessStat::read(7, "").is_none());
    }

    #[tokio::test]
    async fn socket_listener_process_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        assert!(ProcessStat::listening_at(&path).await.is_none());
        let _listener = UnixListener::bind(&path).unwrap();
        let own = ProcessStat::listening_at(&path).await.unwrap();
        assert_eq!(own.pid, std::process::id());
        assert!(!own.is_suspended);
    }
}
