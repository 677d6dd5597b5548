//! How much CPU a program uses, and how much it may: from its cgroup where it has one of its own, else from its processes.
//!
//! A cgroup is what owners set limits for and count by, so it comes first. It is the program's own where nobody else is in
//! it but those who started the program and those whom it started; where several servers share one (a login, a
//! supervisor in a container), what the cgroup uses would be counted once for each. Asking every owner which of the two
//! holds was rejected: the process table says it.
//!
//! What it may use is looked up by itself, whoever else is in the same cgroup: a quota holds all the same, and with version
//! 1 the group that limits need not be the one that counts.

mod cgroup;
mod process;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use cgroup::{Cgroup, Limits};

/// What counters say of a program's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// When it was read.
    pub at: Instant,
    /// CPU time ever used, in microseconds; only comparable within an epoch.
    pub used_us: u64,
    /// How much it may use at once, in thousandths of a core.
    pub limit_millicores: u32,
    /// Another number than before where it is counted in another way than before.
    pub epoch: u32,
}

/// Measures one program: this one, or one that was started. Reads files, which takes well below a millisecond. Clones
/// measure it in the same way.
#[derive(Clone, Debug)]
pub struct Cpu {
    reader: Arc<Mutex<Reader>>,
}

#[derive(Debug)]
struct Reader {
    /// Where `/proc` is.
    proc: PathBuf,
    pid: u32,
    source: Option<Source>,
    limits: Limits,
    epoch: u32,
    how: String,
}

#[derive(Debug)]
enum Source {
    Cgroup(Cgroup),
    Processes,
}

impl Cpu {
    /// Measures this program.
    pub fn of_this_program() -> Self {
        Self::of(std::process::id())
    }

    /// Measures the program that began as this process, with everything that it starts.
    pub fn of(pid: u32) -> Self {
        Self::within(PathBuf::from("/proc"), pid)
    }

    fn within(proc: PathBuf, pid: u32) -> Self {
        let reader =
            Reader { proc, pid, source: None, limits: Limits::default(), epoch: 0, how: String::new() };
        Self { reader: Arc::new(Mutex::new(reader)) }
    }

    /// Reads the counters; `None` where the system shows none, and when the program has ended.
    pub fn read(&self) -> Option<CpuTime> {
        self.reader().read()
    }

    /// How it is measured, and why so, for people; known from the first reading on.
    pub fn how(&self) -> String {
        self.reader().how.clone()
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        // Each field is whole at any moment.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    fn read(&mut self) -> Option<CpuTime> {
        self.settle();
        let used_us = match self.source.as_ref()? {
            Source::Cgroup(cgroup) => cgroup.used_us()?,
            Source::Processes => process::used_us(&self.proc, self.pid)?,
        };
        // At once: a program that is throttled may be stopped for most of a period before its next step.
        let at = Instant::now();
        let cores = process::cores(&self.proc, self.pid);
        let limit_millicores = self.limits.millicores().unwrap_or(u32::MAX).min(cores.saturating_mul(1000));
        Some(CpuTime { at, used_us, limit_millicores, epoch: self.epoch })
    }

    /// Chooses what to read.
    fn settle(&mut self) {
        const SHARED: &str = "other programs run in its cgroup";
        match &self.source {
            Some(Source::Processes) => return,
            Some(Source::Cgroup(cgroup)) if !self.is_shared(cgroup) => return,
            Some(Source::Cgroup(_)) => self.use_processes(SHARED),
            None => {
                self.limits = Limits::find(&self.proc, self.pid);
                match Cgroup::find(&self.proc, self.pid) {
                    Ok(cgroup) if self.is_shared(&cgroup) => self.use_processes(SHARED),
                    Ok(cgroup) => {
                        self.how = format!("cgroup {cgroup}");
                        self.source = Some(Source::Cgroup(cgroup));
                    }
                    Err(reason) => self.use_processes(&reason),
                }
            }
        }
        self.epoch = self.epoch.wrapping_add(1);
        tracing::info!(how = self.how, "the program's CPU is measured");
    }

    fn is_shared(&self, cgroup: &Cgroup) -> bool {
        process::any_stranger(&self.proc, self.pid, cgroup.members())
    }

    /// For good: a cgroup in which somebody else was seen once is never taken for the program's own again.
    fn use_processes(&mut self, reason: &str) {
        self.how = match self.limits.millicores() {
            Some(quota) => {
                format!("its processes, against the quota of {quota} thousandths of a core: {reason}")
            }
            None => {
                let cores = process::cores(&self.proc, self.pid);
                format!("its processes, against all {cores} cores that it may use on this machine: {reason}")
            }
        };
        self.source = Some(Source::Processes);
    }
}

#[cfg(test)]
mod tests;
