//! Real processes of the demo: started, watched and ended by pid, their output kept in files.

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

/// How a process is started, so that it can be started again after it was ended.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// What people call it; also the name of its log file.
    pub name: String,
    /// The executable.
    pub binary: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// A process that this one started. Dropping it kills it.
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
            // Ctrl-C is for the demo, which then stops the fleet in order; the fleet must not stop by itself.
            .process_group(0)
            .spawn()
            .map_err(|e| {
                io::Error::new(e.kind(), format!("cannot start {}: {e}", program.binary.display()))
            })?;
        Ok(Self { program, child, logs: logs.to_owned() })
    }

    /// What people call it.
    pub(super) fn name(&self) -> &str {
        &self.program.name
    }

    /// Ends it at once, as a crash would.
    pub(super) async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Asks it to stop and waits, killing it when it takes longer than `patience`.
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

    /// Asks it to stop.
    pub(super) fn terminate(&self) -> io::Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        match pid {
            Some(pid) => Ok(kill_process(pid, Signal::TERM)?),
            None => Ok(()),
        }
    }

    /// Starts it again after it ended.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        *self = Self::start(self.program.clone(), &self.logs)?;
        Ok(())
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Where its output is.
    pub(super) fn log(&self) -> PathBuf {
        self.logs.join(format!("{}.log", self.program.name))
    }

    /// The last lines of its output, for an error message.
    pub(super) fn last_words(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}
