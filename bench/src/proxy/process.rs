//! A proxy as a process, with its child processes, and the CPU and memory that it used.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::{process_usage::resident, roles::MEASURED};

/// Maximum time for a process to start or respond.
const START: Duration = Duration::from_secs(30);
/// Maximum time for a process to end: longer than the default drain deadline of a proxy.
const END: Duration = Duration::from_secs(30);

/// Command for a program that will run on `processor`, without arguments yet.
pub(super) fn launched(processor: usize, program: &Path) -> Result<Command, String> {
    let launcher = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(launcher);
    command.args(["role", "launch", "--processor", &processor.to_string()]).arg(program);
    Ok(command)
}

/// A running process. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    log: String,
}

impl Process {
    /// Starts a program on the processor of proxies. Programs that size their threads by the number of processors get
    /// one thread.
    pub(crate) fn pinned<A: AsRef<OsStr>>(
        dir: &Path,
        name: &str,
        program: &Path,
        args: &[A],
    ) -> Result<Self, String> {
        let mut command = launched(MEASURED, program)?;
        command.args(args);
        Self::start(dir, name, command)
    }

    /// Starts a program on any processor.
    pub(crate) fn start(dir: &Path, name: &str, mut command: Command) -> Result<Self, String> {
        let path = dir.join(format!("{name}.log"));
        let failed = |e: std::io::Error| format!("cannot start {name}: {e}");
        let log = File::create(&path).map_err(failed)?;
        let errors = log.try_clone().map_err(failed)?;
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().map_err(failed)?;
        Ok(Self { child, log: path.display().to_string() })
    }

    /// Waits until `is_ready` returns true.
    pub(crate) async fn ready(&mut self, is_ready: impl AsyncFn() -> bool) -> Result<(), String> {
        let until = Instant::now() + START;
        while !is_ready().await {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended with {status}: {}", self.last_words()));
            }
            if Instant::now() > until {
                return Err(format!("is not ready within {START:?}: {}", self.last_words()));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Stops the process by a signal, so that an instrumented program can write its profile.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        kill(self.child.id(), Signal::TERM);
        let until = Instant::now() + END;
        loop {
            match self.child.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("ended with {status}: {}", self.last_words())),
                None if Instant::now() > until => return Err(format!("does not end within {END:?}")),
                None => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(3).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("; ")
    }

    /// User and system time of the process and its children, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        tree(self.child.id()).into_iter().map(scheduled_ns).sum()
    }

    /// Resident memory of the process and its children, in bytes.
    pub(crate) fn rss_bytes(&self) -> u64 {
        tree(self.child.id()).into_iter().filter_map(resident).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After the process has ended, its id may belong to another process.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        for pid in tree(self.child.id()).into_iter().rev() {
            kill(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Fails only if the process has already ended.
        let _ = kill_process(pid, signal);
    }
}

/// A process and its descendants.
fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        for thread in threads(pid) {
            let children = fs::read_to_string(format!("{thread}/children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        next += 1;
    }
    all
}

/// The directories of a process's threads.
fn threads(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path().display().to_string()).collect()
}

/// CPU time of the threads of a process, in nanoseconds.
pub(crate) fn scheduled_ns(pid: u32) -> u64 {
    threads(pid).into_iter().filter_map(|thread| ran(&thread)).sum()
}

/// CPU time of a thread from the scheduler statistics, in nanoseconds: `stat` has a resolution of only 10 ms.
fn ran(thread: &str) -> Option<u64> {
    fs::read_to_string(format!("{thread}/schedstat")).ok()?.split(' ').next()?.parse().ok()
}
