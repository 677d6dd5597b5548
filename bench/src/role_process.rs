//! A process of a benchmark: this binary again, in a role that its arguments name, with orders on standard input.

use std::{path::Path, process::Stdio, time::Duration};

use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    load::{Latencies, Run},
    proxy::process::scheduled_ns,
};

/// How long a part may take to respond to one line, beyond the duration of the order.
const PATIENCE: Duration = Duration::from_secs(30);

/// Memory that was freed stays with the process, on both sides: else whether the allocator gives the top of its heap
/// back after each large body, and faults it in again for the next, is a matter of luck that outweighs what is to be
/// measured.
const MEMORY: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=268435456:glibc.malloc.mmap_threshold=33554432");

/// A process that responds to each line of its input with one of its output. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RoleProcess {
    name: String,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl RoleProcess {
    /// Starts it and waits for its first line, which it writes when it is ready.
    pub(crate) async fn start(dir: &Path, args: &[&str]) -> Result<(Self, String), String> {
        Self::start_with(PATIENCE, dir, args, &[MEMORY]).await
    }

    /// The same with the allocator as it is, where memory is what is measured.
    pub(crate) async fn start_bare(dir: &Path, args: &[&str]) -> Result<(Self, String), String> {
        Self::start_with(PATIENCE, dir, args, &[]).await
    }

    /// The same for one that has much to do before.
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

    /// Closed-loop load for a while.
    pub(crate) async fn closed(&mut self, tasks: usize, length: Duration) -> Result<Run, String> {
        self.run(format!("closed {} {tasks}", length.as_millis()), length).await
    }

    /// Open-loop load for a while.
    pub(crate) async fn open(&mut self, rate: u64, length: Duration) -> Result<Latencies, String> {
        self.run(format!("open {} {rate}", length.as_millis()), length).await
    }

    /// The CPU time that the process has used, in nanoseconds.
    pub(crate) async fn cpu_ns(&mut self) -> Result<u64, String> {
        let answer = self.ask("cpu".into(), Duration::ZERO).await?;
        answer.parse().map_err(|_| format!("part '{}' said '{answer}' for its CPU time", self.name))
    }

    /// The response to any order, which may take so long to execute.
    pub(crate) async fn order(&mut self, line: String, length: Duration) -> Result<String, String> {
        self.ask(line, length).await
    }

    /// Has it prepare what later orders need.
    ///
    /// # Errors
    /// What it said instead of `ready`.
    pub(crate) async fn prepare(&mut self, line: String) -> Result<(), String> {
        let answer = self.order(line, Duration::ZERO).await?;
        if answer == "ready" { Ok(()) } else { Err(answer) }
    }

    /// The CPU time that its threads have used, by the scheduler's account, without an order.
    pub(crate) fn cpu(&self) -> Result<u64, String> {
        let pid = self.child.id().ok_or_else(|| format!("part '{}' has ended", self.name))?;
        Ok(scheduled_ns(pid))
    }

    /// Its process id; 0 where it has ended.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// The response to an order that has a result.
    pub(crate) async fn run<T: DeserializeOwned>(
        &mut self,
        line: String,
        length: Duration,
    ) -> Result<T, String> {
        let answer = self.ask(line, length).await?;
        serde_json::from_str(&answer).map_err(|_| format!("part '{}': {answer}", self.name))
    }

    /// Ends it, and waits until it has ended.
    pub(crate) async fn end(mut self) {
        // Fails only where it has ended already.
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
