use std::{ffi::OsString, os::unix::process::ExitStatusExt, process::ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::Command,
    time::{Instant, timeout_at},
};

use super::say;
use crate::failure::Failure;

/// The program that this command started. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
}

impl Child {
    /// Starts the program, where there is one to start.
    pub(super) fn start(command: &[OsString]) -> Result<Option<Self>, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Ok(None);
        };
        let started = Command::new(program)
            .args(arguments)
            // Its own group: Ctrl-C then reaches this command only, and callers leave before the program stops.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let process = started.map_err(|error| {
            Failure::failed_with(
                format!("cannot start '{}': {error}", program.display()),
                "check that the program is there and may be executed",
            )
        })?;
        say(format_args!("started '{}' as process {}", program.display(), process.id().unwrap_or_default()));
        Ok(Some(Self { process }))
    }

    /// Waits until it ends by itself; its exit code, or 128 and the number of the signal that ended it.
    pub(super) async fn wait(&mut self) -> Result<u8, Failure> {
        let status = self.process.wait().await.map_err(Failure::failed)?;
        Ok(code(status))
    }

    /// Asks it to stop and kills it when it has not by `end`. Whoever ends by the signal alone has ended well.
    pub(super) async fn stop(&mut self, end: Instant) -> Result<u8, Failure> {
        say("stopping the program");
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        // It may have ended this moment; then waiting tells.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let status = match timeout_at(end, self.process.wait()).await {
            Ok(status) => status.map_err(Failure::failed)?,
            Err(_) => {
                say("the program did not stop in time; killing it");
                self.process.kill().await.map_err(Failure::failed)?;
                return self.wait().await;
            }
        };
        Ok(if status.signal() == Some(Signal::TERM.as_raw()) { 0 } else { code(status) })
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
