//! Processes of the demo: started, watched and ended by pid, with their output in files.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// Command that starts and restarts a process.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Name of the process for display, and of its log file.
    pub name: String,
    /// Path of the executable.
    pub binary: PathBuf,
    /// Arguments of the process.
    pub args: Vec<OsString>,
}

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Process {
    program: Program,
    child: Child,
    logs: PathBuf,
}

impl Process {
    /// Starts a program whose output goes to `logs/NAME.log`, appended.
    pub(super) fn start(program: Program, logs: &Path) -> io::Result<Self> {
        let log =
            File::options().create(true).append(true).open(logs.join(format!("{}.log", program.name)))?;
        let child = Command::new(&program.binary)
            .args(&program.args)
            .env("FAIRMESH_LOG", "info")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            // Ctrl-C goes to the demo alone, which then stops the fleet in order.
            .process_group(0)
            .spawn()
            .map_err(|e| {
                io::Error::new(e.kind(), format!("cannot start {}: {e}", program.binary.display()))
            })?;
        Ok(Self { program, child, logs: logs.to_owned() })
    }

    /// Name for display.
    pub(super) fn name(&self) -> &str {
        &self.program.name
    }

    /// Kills the process, as a crash would.
    pub(super) async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Terminates the process and waits for it; kills it after `patience`.
    pub(super) async fn stop(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        self.terminate()?;
        match tokio::time::timeout(patience, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.child.kill().await?;
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("{} did not stop within {patience:?}; see {}", self.name(), self.log().display()),
                ))
            }
        }
    }

    /// Sends SIGTERM to the process.
    pub(super) fn terminate(&self) -> io::Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        match pid {
            Some(pid) => Ok(kill_process(pid, Signal::TERM)?),
            None => Ok(()),
        }
    }

    /// Restarts the process after it ended.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        *self = Self::start(self.program.clone(), &self.logs)?;
        Ok(())
    }

    /// Exit status of the process, if it has ended.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Path of the process's log.
    pub(super) fn log(&self) -> PathBuf {
        self.logs.join(format!("{}.log", self.program.name))
    }

    /// The last lines of the process's log, for an error message.
    pub(super) fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}
