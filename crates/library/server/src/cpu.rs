//! CPU time and CPU limit of a program, read from its own cgroup if it has one, otherwise from its processes.
//!
//! A cgroup is preferred, because the kernel applies limits and accounting to it. A cgroup is the program's own if it
//! contains only the program, its ancestors and its descendants. If several servers share a cgroup (a login, a
//! supervisor in a container), its usage would be counted once for each server. Rejected: a setting, since the process
//! table shows the same.
//!
//! The limit is determined separately, even in a shared cgroup: a quota applies in any case, and in cgroup v1 the
//! limiting group may differ from the accounting group.

mod cgroup;
mod listening_process;
mod process;
pub(crate) mod sampler;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use cgroup::{Cgroup, Limits};

/// Interval at which a program is looked for that does not listen yet, or has ended.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// CPU counters of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// Time at which the counters were read.
    pub at: Instant,
    /// Total CPU time, in microseconds; comparable only within an epoch.
    pub used_us: u64,
    /// CPU limit, in thousandths of a core.
    pub limit_millicores: u32,
    /// Number that changes when the source of the counters changes.
    pub epoch: u32,
}

/// Measures a program: this one, or one that this process started. Reading takes well below a millisecond, as it reads
/// a few files. Clones share their state.
#[derive(Clone, Debug)]
pub struct Cpu {
    reader: Arc<Mutex<Reader>>,
}

#[derive(Debug)]
struct Reader {
    /// The path of `/proc`.
    proc: PathBuf,
    pid: u32,
    /// Set for a process in front of the program: where the program listens.
    behind: Option<Behind>,
    source: Option<Source>,
    limits: Limits,
    epoch: u32,
    how: String,
}

/// A program that is found by its listener.
#[derive(Debug)]
struct Behind {
    address: SocketAddr,
    looked_at: Option<Instant>,
    /// Number of times that it was not found since it was last found.
    misses: u32,
}

#[derive(Debug)]
enum Source {
    Cgroup(Cgroup),
    Processes,
    /// Microseconds that the program counts itself, and its limit in thousandths of a core.
    Counter(Arc<AtomicU64>, u32),
}

impl Cpu {
    /// Measures this program.
    pub fn of_this_program() -> Self {
        Self::of(std::process::id())
    }

    /// Measures the program of this process and its descendants.
    pub fn of(pid: u32) -> Self {
        Self::within(PathBuf::from("/proc"), pid)
    }

    /// Measures the program that listens at this address of the machine, for a process in front of it. Finds it again after
    /// its restart. A program that is not found, such as that of another user, is not measured: this process is, with a
    /// warning.
    pub fn of_listener(address: SocketAddr) -> Self {
        let cpu = Self::of_this_program();
        cpu.reader().behind = Some(Behind { address, looked_at: None, misses: 0 });
        cpu
    }

    /// Reads a counter of microseconds instead of the system's, and takes the limit as given. For a program whose work
    /// takes worker slots and no CPU: a slot stands for a core.
    pub fn of_counter(used_us: Arc<AtomicU64>, limit_millicores: u32) -> Self {
        let cpu = Self::of_this_program();
        let mut reader = cpu.reader();
        reader.how = "a counter of the program".to_owned();
        reader.source = Some(Source::Counter(used_us, limit_millicores));
        drop(reader);
        cpu
    }

    fn within(proc: PathBuf, pid: u32) -> Self {
        let reader = Reader {
            proc,
            pid,
            behind: None,
            source: None,
            limits: Limits::default(),
            epoch: 0,
            how: String::new(),
        };
        Self { reader: Arc::new(Mutex::new(reader)) }
    }

    /// Reads the counters. Returns `None` if the system has none, or the program has ended.
    pub fn read(&self) -> Option<CpuTime> {
        self.reader().read()
    }

    /// Describes the source of the counters; known after the first reading.
    pub fn how(&self) -> String {
        self.reader().how.clone()
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        // Each field is consistent at any time, even after a panic elsewhere.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    fn read(&mut self) -> Option<CpuTime> {
        self.find_program();
        self.choose_source();
        let used_us = match self.source.as_ref()? {
            Source::Cgroup(cgroup) => cgroup.used_us()?,
            Source::Processes => process::used_us(&self.proc, self.pid)?,
            Source::Counter(used_us, limit_millicores) => {
                let (used_us, limit_millicores) = (used_us.load(Relaxed), *limit_millicores);
                return Some(CpuTime { at: Instant::now(), used_us, limit_millicores, epoch: self.epoch });
            }
        };
        // Read immediately: a throttled program may be stopped for most of a period before its next step.
        let at = Instant::now();
        let cores = process::cores(&self.proc, self.pid);
        let limit_millicores = self.limits.millicores().unwrap_or(u32::MAX).min(cores.saturating_mul(1000));
        Some(CpuTime { at, used_us, limit_millicores, epoch: self.epoch })
    }

    /// Finds the program behind this process, unless it is known and runs.
    fn find_program(&mut self) {
        let own = std::process::id();
        let is_known = self.pid != own && process::is_running(&self.proc, self.pid);
        let Some(behind) = self.behind.as_mut().filter(|_| !is_known) else { return };
        if behind.looked_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
            return;
        }
        behind.looked_at = Some(Instant::now());
        let (address, found) = (behind.address, listening_process::find(&self.proc, behind.address, own));
        behind.misses = if found.is_some() { 0 } else { behind.misses.saturating_add(1) };
        // At the first look, the program may not have started yet.
        if behind.misses == 2 {
            tracing::warn!(
                %address,
                "no process that this user may see listens for the program, so that the CPU of this process alone is reported: run \
                 both as one user and in one PID namespace, or let the program send 'cpu_utilization' in load reports"
            );
        }
        let pid = found.unwrap_or(own);
        if pid != self.pid {
            (self.pid, self.source) = (pid, None);
        }
    }

    /// Chooses the source.
    fn choose_source(&mut self) {
        const SHARED: &str = "other programs run in its cgroup";
        match &self.source {
            Some(Source::Processes | Source::Counter(..)) => return,
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
        tracing::info!(how = self.how, "measuring the program's CPU");
    }

    fn is_shared(&self, cgroup: &Cgroup) -> bool {
        process::any_unrelated(&self.proc, self.pid, cgroup.members())
    }

    /// Switches to processes permanently: a cgroup that was shared once is never considered the program's own again.
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
