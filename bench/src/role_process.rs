//! A process of a benchmark: this binary again, in a role given by its arguments, with commands on standard input.

use std::{path::Path, process::Stdio, time::Duration};

use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    load_generator::{Latencies, Run},
    proxy::process::scheduled_ns,
};

/// Maximum time of a response, beyond the duration of the command.
const PATIENCE: Duration = Duration::from_secs(30);

/// Freed memory stays with the process, on both sides. Otherwise it is a matter of luck whether the allocator returns
/// the top of its heap after each large body and faults it in again for the next one, which outweighs the measured
/// differences.
const MEMORY: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=268435456:glibc.malloc.mmap_threshold=33554432");

/// A process that responds to each input line with one output line. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RoleProcess {
    name: String,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl RoleProcess {
    /// Starts a process, and waits for its first line, which it writes when it is ready.
    pub(crate) async fn start(dir: &Path, args: &[&str]) -> Result<(Self, String), String> {
        Self::start_with(PATIENCE, dir, args, &[MEMORY]).await
    }

    /// As `start`, with default allocator settings, for measurements of memory.
    pub(crate) async fn start_bare(dir: &Path, args: &[&str]) -> Result<(Self, String), String> {
        Self::start_with(PATIENCE, dir, args, &[]).await
    }

    /// As `start`, with a longer timeout for the start.
    pub(crate) async fn start_within(
        patience: Duration,
        dir: &Path,
        args: &[&str],
    ) -> Result<(Self, String), String> {
        Self::start_with(patience, dir, args, &[MEMORY]).await
    }

    async fn start_with(
        patience: Duration,
        dir: &Path,
        args: &[&str],
        vars: &[(&str, &str)],
    ) -> Result<(Self, String), String> {
        let name = args.join(" ");
        let failed = |e: std::io::Error| format!("cannot start part '{}': {e}", args.join(" "));
        let binary = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(binary)
            .arg("role")
            .args(args)
            .arg("--dir")
            .arg(dir)
            .envs(vars.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("part '{name}' has no pipes"));
        };
        let mut part = Self { name, to, from: BufReader::new(from).lines(), child };
        let ready = part.line(patience).await?;
        Ok((part, ready))
    }

    /// Closed-loop load for `length`.
    pub(crate) async fn closed(&mut self, tasks: usize, length: Duration) -> Result<Run, String> {
        self.run(format!("closed {} {tasks}", length.as_millis()), length).await
    }

    /// Open-loop load for `length`.
    pub(crate) async fn open(&mut self, rate: u64, length: Duration) -> Result<Latencies, String> {
        self.run(format!("open {} {rate}", length.as_millis()), length).await
    }

    /// CPU time of the process so far, in nanoseconds.
    pub(crate) async fn cpu_ns(&mut self) -> Result<u64, String> {
        let answer = self.ask("cpu".into(), Duration::ZERO).await?;
        answer.parse().map_err(|_| format!("part '{}' said '{answer}' for its CPU time", self.name))
    }

    /// Sends a command that takes `length`, and returns the response.
    pub(crate) async fn order(&mut self, line: String, length: Duration) -> Result<String, String> {
        self.ask(line, length).await
    }

    /// Sends a command that prepares later ones.
    ///
    /// # Errors
    /// The response, if it is not `ready`.
    pub(crate) async fn prepare(&mut self, line: String) -> Result<(), String> {
        let answer = self.order(line, Duration::ZERO).await?;
        if answer == "ready" { Ok(()) } else { Err(answer) }
    }

    /// CPU time of the process's threads from the scheduler statistics in nanoseconds, without a command.
    pub(crate) fn cpu(&self) -> Result<u64, String> {
        let pid = self.child.id().ok_or_else(|| format!("part '{}' has ended", self.name))?;
        Ok(scheduled_ns(pid))
    }

    /// Process id; 0 after it has ended.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Sends a command, and parses its result.
    pub(crate) async fn run<T: DeserializeOwned>(
        &mut self,
        line: String,
        length: Duration,
    ) -> Result<T, String> {
        let answer = self.ask(line, length).await?;
        serde_json::from_str(&answer).map_err(|_| format!("part '{}': {answer}", self.name))
    }

    /// Ends the process, and waits until it has ended.
    pub(crate) async fn end(mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill().await;
    }

    async fn ask(&mut self, mut line: String, length: Duration) -> Result<String, String> {
        line.push('\n');
        self.to.write_all(line.as_bytes()).await.map_err(|e| format!("part '{}' is gone: {e}", self.name))?;
        self.line(length + PATIENCE).await
    }

    async fn line(&mut self, patience: Duration) -> Result<String, String> {
        match tokio::time::timeout(patience, self.from.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(Ok(None)) => Err(format!("part '{}' ended; its last words are above", self.name)),
            Ok(Err(e)) => Err(format!("part '{}' cannot be read: {e}", self.name)),
            Err(_) => Err(format!("part '{}' did not answer within {patience:?}", self.name)),
        }
    }
}
