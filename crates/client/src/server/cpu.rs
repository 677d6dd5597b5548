//! How much CPU a program uses, and how much it may: from its cgroup where it has one of its own, else from its processes.
//!
//! A cgroup is what owners set limits for and count by, so it comes first. It is the program's own where nobody else is in
//! it but those who started the program and those whom it started; where several servers share one (a login, a
//! supervisor in a container), what the cgroup uses would be counted once for each. Asking every owner which of the two
//! holds was rejected: the process table says it.

mod cgroup;
mod process;

use std::{path::PathBuf, thread::available_parallelism};

use cgroup::Cgroup;

/// What counters say of a program's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// CPU time ever used, in microseconds; only comparable while `begins_anew` is not said.
    pub used_us: u64,
    /// How much it may use at once, in thousandths of a core.
    pub limit_millicores: u32,
    /// This is counted in another way than the time before.
    pub begins_anew: bool,
}

/// Measures one program: this one, or one that was started. Reads files, which takes well below a millisecond.
#[derive(Debug)]
pub struct Cpu {
    /// Where `/proc` is.
    proc: PathBuf,
    pid: u32,
    source: Option<Source>,
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
        Self { proc, pid, source: None, how: String::new() }
    }

    /// Reads the counters; `None` where the system shows none, and when the program has ended.
    pub fn read(&mut self) -> Option<CpuTime> {
        let begins_anew = self.settle();
        let (used_us, quota) = match self.source.as_ref()? {
            Source::Cgroup(cgroup) => (cgroup.used_us()?, cgroup.limit_millicores()),
            Source::Processes => (process::used_us(&self.proc, self.pid)?, None),
        };
        let machine = machine_millicores();
        let limit_millicores = quota.map_or(machine, |quota| quota.min(machine));
        Some(CpuTime { used_us, limit_millicores, begins_anew })
    }

    /// How it is measured, and why so, for people; known from the first reading on.
    pub fn how(&self) -> &str {
        &self.how
    }

    /// Chooses what to read; whether that is another thing than before.
    fn settle(&mut self) -> bool {
        const SHARED: &str = "other programs run in its cgroup";
        match &self.source {
            Some(Source::Processes) => return false,
            Some(Source::Cgroup(cgroup)) if !self.is_shared(cgroup) => return false,
            Some(Source::Cgroup(_)) => self.use_processes(SHARED),
            None => match Cgroup::find(&self.proc, self.pid) {
                Ok(cgroup) if self.is_shared(&cgroup) => self.use_processes(SHARED),
                Ok(cgroup) => {
                    self.how = format!("cgroup {cgroup}");
                    self.source = Some(Source::Cgroup(cgroup));
                }
                Err(reason) => self.use_processes(&reason),
            },
        }
        tracing::info!(how = self.how, "the program's CPU is measured");
        true
    }

    fn is_shared(&self, cgroup: &Cgroup) -> bool {
        process::any_stranger(&self.proc, self.pid, cgroup.members())
    }

    /// For good: a cgroup in which somebody else was seen once is never taken for the program's own again.
    fn use_processes(&mut self, reason: &str) {
        let cores = machine_millicores() / 1000;
        self.how =
            format!("its processes, against all {cores} cores that it may use on this machine: {reason}");
        self.source = Some(Source::Processes);
    }
}

/// What this machine has, as far as this program may use it.
fn machine_millicores() -> u32 {
    let cores = available_parallelism().map_or(1, usize::from);
    u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(1000)
}

#[cfg(test)]
mod tests;
