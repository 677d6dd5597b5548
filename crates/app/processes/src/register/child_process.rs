use std::{ffi::OsString, os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use fairmesh_console::{arguments::SECRET_VARIABLES, failure::Failure};
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, getpid, getppid, kill_process_group, set_parent_process_death_signal,
        test_kill_process_group, waitpgid,
    },
};
use tokio::{
    process::Command,
    time::{Instant, sleep, timeout_at},
};

use super::print_status;

/// Interval between checks for remaining descendants, about which the system sends no notification.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The started program with all its descendants, which are included because a shell does not pass signals on to its
/// children. Dropping this kills them all.
#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
    group: Group,
}

/// A process group; `None` after it was found empty, since its ID may then be reused.
#[derive(Debug)]
struct Group(Option<Pid>);

impl Child {
    /// Starts the program, if one is given. Must be called from the main thread: the kernel terminates the program when
    /// the thread that started it ends, even if this process is killed.
    pub(super) fn start(command: &[OsString]) -> Result<Option<Self>, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Ok(None);
        };
        let mut starting = Command::new(program);
        // A process group of its own: Ctrl-C then reaches this command only, and callers leave before the program
        // stops.
        starting.args(arguments).process_group(0);
        for name in SECRET_VARIABLES {
            starting.env_remove(name);
        }
        end_with_parent(&mut starting);
        let process = starting.spawn().map_err(|error| {
            Failure::failed_with(
                format!("cannot start '{}': {error}", program.display()),
                "check that the program exists and is executable",
            )
        })?;
        print_status(format_args!(
            "started '{}' as process {}",
            program.display(),
            process.id().unwrap_or_default()
        ));
        let group = Group(process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())));
        Ok(Some(Self { process, group }))
    }

    /// Process ID of the program's first process, while that process runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Waits until the program ends by itself. Returns its exit code, or 128 plus the number of the signal that ended
    /// it. Descendants that remain are asked to stop.
    pub(super) async fn wait(&mut self) -> Result<u8, Failure> {
        let status = self.process.wait().await.map_err(Failure::failed)?;
        if !self.group.is_empty() {
            self.group.signal(Signal::TERM);
        }
        Ok(code(status))
    }

    /// Terminates the program, and kills it if it has not ended by `end`. A program that ends by the signal counts as
    /// successful.
    pub(super) async fn stop(&mut self, end: Instant) -> Result<u8, Failure> {
        print_status("stopping the program");
        self.group.signal(Signal::TERM);
        let ended = async {
            let status = self.process.wait().await;
            while !self.group.is_empty() {
                sleep(POLL_INTERVAL).await;
            }
            status
        };
        let status = match timeout_at(end, ended).await {
            Ok(status) => status.map_err(Failure::failed)?,
            Err(_) => {
                print_status("the program did not stop in time; killing it");
                self.group.signal(Signal::KILL);
                return self.wait().await;
            }
        };
        Ok(if status.signal() == Some(Signal::TERM.as_raw()) { 0 } else { code(status) })
    }
}

/// Lets the kernel terminate the program when this process is killed. Otherwise the program would run on unregistered,
/// and keep its port from its successor.
#[allow(unsafe_code, reason = "only the program itself can ask for the signal, between fork and exec")]
fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        match getppid() == Some(parent) {
            true => Ok(()),
            // This process has ended already.
            false => Err(Errno::SRCH.into()),
        }
    };
    // SAFETY: it makes two system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

impl Group {
    /// Whether the group is empty. Call this only after the group's first process was reaped.
    fn is_empty(&mut self) -> bool {
        let Some(pid) = self.0 else { return true };
        // If this process is the init process of a container, orphans become its children.
        while let Ok(Some(_)) = waitpgid(pid, WaitOptions::NOHANG) {}
        if test_kill_process_group(pid).is_err() {
            self.0 = None;
        }
        self.0.is_none()
    }

    fn signal(&self, signal: Signal) {
        // The group may have ended already; waiting shows that.
        let _ = self.0.map(|pid| kill_process_group(pid, signal));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    /// A shell that runs a child program, which writes its pid to a file.
    async fn shell_with_a_program(folder: &Path) -> (Child, Pid) {
        let file = folder.join("pid");
        let inner = format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 600", file.display());
        let script = format!("sh -c \"{}\"; true", inner.replace('$', "\\$"));
        let child = Child::start(&["sh", "-c", &script].map(OsString::from)).unwrap().unwrap();
        let wrote = async {
            loop {
                if let Ok(text) = std::fs::read_to_string(&file) {
                    return Pid::from_raw(text.trim().parse().unwrap()).unwrap();
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        (child, tokio::time::timeout(BOUND, wrote).await.expect("the program starts"))
    }

    /// Waits until a process has ended; a zombie counts as ended.
    async fn ends(pid: Pid) {
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let gone = async {
            while std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z ")) {
                sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(BOUND, gone).await.expect("descendants end with the program");
    }

    #[tokio::test]
    async fn register_stop_ends_descendants_of_shell() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, program) = shell_with_a_program(folder.path()).await;
        assert_ne!(child.process.id().unwrap().cast_signed(), program.as_raw_nonzero().get());
        assert_eq!(child.stop(Instant::now() + BOUND).await.unwrap(), 0);
        ends(program).await;
    }

    #[tokio::test]
    async fn register_ends_descendants_of_exited_shell() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, program) = shell_with_a_program(folder.path()).await;
        child.process.start_kill().unwrap();
        assert_eq!(child.wait().await.unwrap(), 128 + 9);
        ends(program).await;
    }

    #[tokio::test]
    async fn dropping_child_process_kills_descendants_of_shell() {
        let folder = tempfile::tempdir().unwrap();
        let (child, program) = shell_with_a_program(folder.path()).await;
        drop(child);
        ends(program).await;
    }
}
