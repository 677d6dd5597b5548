use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::process::ExitStatusExt as _,
    process::ExitStatus,
    time::Duration,
};

use fairmesh_test_support::{MODE, NEEDS_MACHINE, RUNS_ALONE, RUNS_SHARED, SKIPPED};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::{Instant, timeout},
};

use crate::test_listing::Test;

/// Time limit of a test; a test that takes longer hangs. The longest test takes under two minutes on an idle machine.
/// Documentation tests may first have to be compiled, which takes minutes on two cores.
const TIME_LIMIT: Duration = Duration::from_secs(900);
/// Maximum number of bytes kept from the end of a test's output.
const OUTPUT_LIMIT: u64 = 256 << 10;

/// Whether other tests run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Other tests run at the same time.
    Shared,
    /// No other test runs.
    Alone,
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The test failed, with the exit status of its process.
    Failed(String),
    /// The test was skipped, with the reason.
    Skipped(String),
    /// The test must run again, without other tests.
    NeedsMachine,
}

/// A test that has run.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// The end of the test's output.
    pub(crate) output: String,
}

/// Runs one test to its end, or until the time limit.
///
/// # Errors
/// When its process cannot be started.
pub(crate) async fn run(test: &Test, mode: Mode) -> Result<Finished, String> {
    let mut command = test.binary.command();
    command.args([&test.name, "--exact", "--nocapture"]);
    command.env(MODE, if mode == Mode::Alone { RUNS_ALONE } else { RUNS_SHARED });
    let name = test.full_name();
    let began = Instant::now();
    let (status, output) = run_command(command).await.map_err(|error| format!("{name}: {error}"))?;
    let outcome = outcome(status, &output);
    Ok(Finished { name, outcome, took: began.elapsed(), output })
}

/// Runs a command in its own process group. Returns its exit status (`None` at the time limit), and the end of its
/// output.
pub(crate) async fn run_command(mut command: Command) -> std::io::Result<(Option<ExitStatus>, String)> {
    // A file instead of a pipe: a process that outlives the test would keep a pipe open.
    let mut file = tempfile::tempfile()?;
    command.stdout(file.try_clone()?).stderr(file.try_clone()?).process_group(0);
    let mut group = Group(command.spawn()?);
    let ended = timeout(TIME_LIMIT, group.0.wait()).await;
    drop(group);
    let output = tail(&mut file)?;
    Ok((ended.ok().transpose()?, output))
}

/// A process with its descendants. If dropped before the process has ended, all are killed.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let leader = self.0.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(leader) = leader {
            // The process may be ending at this moment.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

fn tail(file: &mut File) -> std::io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_LIMIT)))?;
    let mut bytes = Vec::new();
    file.take(OUTPUT_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn outcome(status: Option<ExitStatus>, output: &str) -> Outcome {
    let Some(status) = status else {
        return Outcome::Failed(format!("not finished after {} s", TIME_LIMIT.as_secs()));
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => match output.lines().find_map(|line| line.strip_prefix(SKIPPED)) {
            Some(reason) => Outcome::Skipped(reason.to_owned()),
            None => Outcome::Passed,
        },
        (Some(NEEDS_MACHINE), _) => Outcome::NeedsMachine,
        (_, Some(signal)) => Outcome::Failed(format!("killed by signal {signal}")),
        (code, None) => Outcome::Failed(format!("exit code {}", code.unwrap_or(-1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (status, output) = run_command(command).await.unwrap();
        outcome(status, &output)
    }

    #[tokio::test]
    async fn test_outcome_follows_exit_status_and_output() {
        assert_eq!(sh("echo fine").await, Outcome::Passed);
        assert_eq!(sh("echo 'skipped: no disk' >&2").await, Outcome::Skipped("no disk".into()));
        assert_eq!(sh("echo 'skipped: no disk'; exit 101").await, Outcome::Failed("exit code 101".into()));
        assert_eq!(sh("exit 75").await, Outcome::NeedsMachine);
        assert_eq!(sh("kill -9 $$").await, Outcome::Failed("killed by signal 9".into()));
    }

    #[tokio::test]
    async fn cancelled_test_run_kills_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("sleep 60 & echo $! > {}.new && mv {0}.new {0}; wait", file.display())]);
        let mut running = Box::pin(run_command(command));
        let pid = loop {
            let step = timeout(Duration::from_millis(5), running.as_mut()).await;
            assert!(step.is_err(), "it ended by itself");
            if let Ok(pid) = std::fs::read_to_string(&file) {
                break pid.trim().to_owned();
            }
        };
        drop(running);
        let is_gone = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        timeout(Duration::from_secs(20), async {
            while !is_gone() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("the process of the process is gone too");
    }
}
